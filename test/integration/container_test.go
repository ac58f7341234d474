package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestWanted heals a mount point without --standalone only while a running container
// of its pod has the volume mounted.
func TestWanted(t *testing.T) {
	n := harness.NewNode(t).Start()
	v := n.NewVolume("ext4", "wanted")
	n.Expect("healthy", v.Request())
	before := n.Table()

	v.Unpublish()
	unmounted := n.Table()
	n.Expect("abnormal", v.Request(), "no running container")
	n.SameTable(unmounted)

	v.PublishAgain()
	other := n.NewContainer(harness.UnrelatedPod, v.MountPoint())
	v.Unpublish()
	n.Expect("abnormal", v.Request(), "no running container")
	other.Kill()

	v.PublishAgain()
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted", "rebind")
	n.SameTable(before)
	if out, err := c.Exec("cat", "/data/a"); err != nil || !strings.Contains(out, "first") {
		t.Errorf("the container lost its data: %v %q", err, out)
	}

	v.Unpublish()
	c.Kill()
	n.Expect("abnormal", v.Request(), "no running container")
	n.SameTable(unmounted)
}
