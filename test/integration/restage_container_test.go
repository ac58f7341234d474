package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageInContainers brings a volume that was staged anew back into the container
// that had it, whose process goes on, and leaves another volume alone.
func TestRestageInContainers(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{Stage: csidriver.DoesNothing})
	v, other := d.NewVolume("v"), d.NewVolume("other")
	c := n.StartContainer(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}, Loop: &harness.Loop{Read: "/data/a", Write: "/data/loop"},
	})
	n.Expect("healthy", d.Request(v))
	n.Expect("healthy", d.Request(other))
	before := d.Table(v)
	for range 2 {
		d.KillDaemon(v)
		n.Expect("healed", d.Request(v), "restage of the staging mount point in ", "replace of the target in ", "replace-in-container")
		d.SameTable(v, before)
		if p := c.AwaitTurns(); p.Reads != p.Turns || p.Writes != p.Turns || c.Starts() != 1 {
			t.Errorf("the container's process comes by %+v, was started %d times, and met %q", p, c.Starts(), c.Errors())
		}
		n.Expect("healthy", d.Request(other))
	}
}
