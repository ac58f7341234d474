package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// restaging is a node whose server has the tests' driver stage volumes anew.
func restaging(t *testing.T, order string, m csidriver.Mode) (*harness.Node, *harness.CSIDriver) {
	t.Helper()
	n := harness.NewNode(t, "--standalone", "--restage-driver="+harness.Driver+"="+order)
	m.NoAddons = true // as most
	d := n.NewCSIDriver(m)
	return n.Start(), d
}

// TestRestage kills a volume's daemon: one call has the driver start it anew, and the
// volume is back at its target, with the same data.
func TestRestage(t *testing.T) {
	for name, tc := range map[string]struct {
		order string
		stage csidriver.Stage
	}{
		"heals":     {"stage-first", csidriver.Heals},
		"refuses":   {"stage-first", csidriver.RefusesDead},
		"bare":      {"stage-first", csidriver.NeedsBare},
		"nothing":   {"unmount-first", csidriver.DoesNothing},
		"stacks":    {"unmount-first", csidriver.Stacks},
		"unmounted": {"unmount-first", csidriver.Heals},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := restaging(t, tc.order, csidriver.Mode{Stage: tc.stage, UserKey: harness.Canary})
			v := d.NewVolume("restaged")
			other := n.NewVolume("ext4", "other")
			n.Expect("healthy", d.Request(v))
			n.Expect("healthy", other.Request())
			before, sum := d.Table(v), v.Sum(v.MountPoint())
			d.KillDaemon(v)
			n.Expect("healed", d.Request(v), "restage of the staging mount point in ", "; replace of the target in ")
			d.SameTable(v, before)
			if now := v.Sum(v.MountPoint()); now != sum {
				t.Error("the data is another one")
			}
			v.Writable(v.MountPoint())
			n.Expect("healthy", d.Request(v))
			n.Expect("healthy", other.Request())
		})
	}
}
