package integration

import (
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

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
		n.Expect("healed", d.Request(v), "restage of the staging mount point; ", "replace of the target", "replace-in-container")
		d.SameTable(v, before)
		if p := c.AwaitTurns(); p.Reads != p.Turns || p.Writes != p.Turns || c.Starts() != 1 {
			t.Errorf("the container's process comes by %+v, was started %d times, and met %q", p, c.Starts(), c.Errors())
		}
		n.Expect("healthy", d.Request(other))
	}
}

// TestRestageInContainersAgain has the loop try again once the driver is able to stage:
// until then the staging path has a placeholder, and only the pod's target and its container
// still have what was staged.
func TestRestageInContainersAgain(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=heal", "--check-interval=10s", "--heal-timeout=20s", "--restage-driver="+harness.Driver+"=unmount-first")
	aborts := csidriver.Mode{NoAddons: true, Answers: map[string]csidriver.Answer{"NodeStageVolume": {Code: codes.Aborted, Text: "an operation is under way"}}}
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true})
	n.Start()
	v := d.NewVolume("v")
	n.StartContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}})
	n.Expect("healthy", d.Request(v))
	before := d.Table(v)
	d.Behave(aborts)
	d.KillDaemon(v)
	harness.Eventually(t, "a restage failed", func() bool {
		audit, err := os.ReadFile(n.StateDir() + "/audit.log")
		return err == nil && strings.Contains(string(audit), "NodeStageVolume: ABORTED")
	})
	d.Behave(csidriver.Mode{NoAddons: true})
	harness.Eventually(t, "the volume is healed without a call", func() bool { return slices.Equal(d.Table(v), before) })
	v.Writable(v.MountPoint())
}
