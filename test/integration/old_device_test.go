package integration

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestContainerOnOldDevice attaches a raw block volume again, under another number, while
// a container has the node of the old one, which may be another volume's by now. The
// answer names it until it is gone, and none that started later.
func TestContainerOnOldDevice(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	v := n.NewVolume("block", "attached again")
	n.Expect("healthy", v.Request())
	before := n.StartContainer(harness.ContainerSpec{Name: "before"})
	n.Expect("healthy", v.Request())
	recorded := mountPointsRecorded(t, n, v)

	reattach(v)
	for range 2 {
		n.Expect("abnormal", v.Request(), "ContainerOnOldDevice", before.ID()[:12], "delete the pod")
	}
	later := n.StartContainer(harness.ContainerSpec{Name: "later"})
	n.Stop()
	n.Start()
	a, err := n.Call(v.Request())
	harness.Must(t, err)
	if named := a.GetMessage(); !a.GetAbnormal() || !strings.Contains(named, before.ID()[:12]) || strings.Contains(named, later.ID()[:12]) {
		t.Errorf("got %s", named)
	}
	if now := mountPointsRecorded(t, n, v); !slices.Equal(now, recorded) {
		t.Errorf("recorded was %v, and is %v", recorded, now)
	}
	next.untouched()
	before.Kill()
	n.Expect("healthy", v.Request())
	if now := mountPointsRecorded(t, n, v); slices.Equal(now, recorded) {
		t.Error("the record still has the old number")
	}
	n.Expect("healthy", v.Request())
}

// reattach returns a raw block volume's disk another number, as after a new login to its
// target, and publishes that.
func reattach(v *harness.Volume) {
	t := v.Node.T
	t.Helper()
	v.Unpublish()
	harness.Must(t, unix.Unmount(v.StagedFile(), 0))
	v.Attach()
	v.Stage()
	v.PublishAgain()
}

// mountPointsRecorded reads what the server has on disk of a volume's mount points.
func mountPointsRecorded(t *testing.T, n *harness.Node, v *harness.Volume) []healer.MountPointRecord {
	t.Helper()
	return recordOf(t, n, v.ID).MountPoints
}
