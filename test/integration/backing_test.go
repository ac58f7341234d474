package integration

import (
	"os"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestBlockBackingGone shows that the disk itself is asked: what was read before is
// still in the page cache.
func TestBlockBackingGone(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("block", "truncated")
	n.Expect("healthy", v.Request())
	disk, err := os.Open(v.Device)
	harness.Must(t, err)
	defer disk.Close()
	block := make([]byte, 4096)
	_, err = disk.ReadAt(block, 0)
	harness.Must(t, err)
	harness.Must(t, os.Truncate(v.Image, 0))
	if _, err := disk.ReadAt(block, 0); err != nil {
		t.Fatalf("the cache does not answer: %v", err)
	}
	before := n.Table()
	for range 2 {
		n.Expect("abnormal", v.Request(), "DeviceReadError", "read the device", "EIO")
		n.SameTable(before)
	}
}
