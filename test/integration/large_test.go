package integration

import (
	"os"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestChecksReadNoDirectory counts the requests that a FUSE daemon gets.
func TestChecksReadNoDirectory(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v, fs := n.NewFUSEVolume("large", faultfs.Config{})
	for range 5 {
		n.Expect("healthy", v.Request())
	}
	if fs.Requests(faultfs.Open) == 0 {
		t.Error("the directory was not even opened")
	}
	if times := fs.Requests(faultfs.Readdir); times != 0 {
		t.Errorf("the directory was read %d times", times)
	}
	_, err := os.ReadDir(v.MountPoint())
	harness.Must(t, err)
	if fs.Requests(faultfs.Readdir) == 0 {
		t.Error("who reads the directory is not counted: the test shows nothing")
	}
}
