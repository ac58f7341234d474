package integration

import (
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRepublish has kubelet call NodePublishVolume again, as it does for drivers with
// requiresRepublish, of a driver that mounts at the target itself: that brings the host's target
// back, and a call, or the loop, the running container. Also for an inline volume.
func TestRepublish(t *testing.T) {
	t.Run("volume", func(t *testing.T) { republishes(t, false) })
	t.Run("inline", func(t *testing.T) { republishes(t, true) })
}

func republishes(t *testing.T, inline bool) {
	t.Helper()
	n := harness.NewNode(t, "--standalone", "--restage-driver="+harness.Driver+"=unmount-first")
	d := n.NewCSIDriver(csidriver.Mode{PublishOnly: true, NoAddons: true})
	n.Start()
	v := d.NewPublishedVolume("v", inline)
	c := n.StartContainer(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}, Loop: &harness.Loop{Read: "/data/a", Write: "/data/loop"},
	})
	request := d.Request(v)
	request.StagingTargetPath = ""
	n.Expect("healthy", request)
	before := d.Table(v)
	for i := range 2 {
		if i > 0 {
			n.Stop()
			n.Args = append(n.Args, "--loop=heal", "--check-interval=10s")
			n.Start()
			n.Expect("healthy", request)
		}
		d.KillDaemon(v)
		dead := d.Table(v)
		n.Expect("abnormal", request, "Disconnected")
		if now := d.Table(v); !slices.Equal(now, dead) {
			t.Errorf("it changed\n%v to\n%v", dead, now)
		}
		d.Call(d.Publishes(v))
		if i == 0 {
			n.Expect("healed", request, "replace-in-container")
		}
		harness.Eventually(t, "the container's process reads and writes again", func() bool {
			p := c.AwaitTurns()
			return p.Reads == p.Turns && p.Writes == p.Turns
		})
		n.Expect("healthy", request)
		if now := d.Table(v); !slices.Equal(now, before) || c.Starts() != 1 {
			t.Errorf("after %d starts of the container\n%v\nbecame\n%v", c.Starts(), before, now)
		}
	}
}
