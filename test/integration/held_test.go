package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestHeld expects the message of a sick volume to say in which containers it is mounted,
// and how often in all.
func TestHeld(t *testing.T) {
	n := harness.NewNode(t, seesShutdown()...).Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "held")
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	shutdown(t, v.Staging)
	for range 2 {
		n.Expect("abnormal", v.Request(), "FilesystemShutdown", "Held by 3 mounts, also in pod "+harness.PodUID+" container "+c.ID()[:12])
	}
	next.untouched()
}
