package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
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

// healthyVolumes makes volumes of the driver that were seen healthy.
func healthyVolumes(n *harness.Node, d *harness.CSIDriver, count int) (volumes []*harness.Volume) {
	n.T.Helper()
	for i := range count {
		v := d.NewVolume(fmt.Sprint("v", i))
		n.Expect("healthy", d.Request(v))
		volumes = append(volumes, v)
	}
	return volumes
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
			n.Expect("healed", d.Request(v), "restage of the staging mount point; ", "; replace of the target")
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

// TestRestageSelf has the driver forget what it staged, and repair its
// volume itself at the same time.
func TestRestageSelf(t *testing.T) {
	t.Run("remembers", func(t *testing.T) {
		n, d := restaging(t, "unmount-first", csidriver.Mode{Stage: csidriver.Remembers})
		v := d.NewVolume("v")
		n.Expect("healthy", d.Request(v))
		before := d.Table(v)
		d.KillDaemon(v)
		n.Expect("abnormal", d.Request(v), "RestageHadNoEffect")
		disconnected(t, v.Staging)
		d.Stop()
		d.Start() // it remembers nothing
		n.Expect("healed", d.Request(v), "restage of the staging mount point; ")
		d.SameTable(v, before)
	})
	for _, order := range []string{"stage-first", "unmount-first"} {
		t.Run(order, func(t *testing.T) {
			n, d := restaging(t, order, csidriver.Mode{Stage: csidriver.Repairs})
			v := d.NewVolume("v")
			for range 5 {
				n.Expect("healthy", d.Request(v))
				before := d.Table(v)
				d.EndDaemon(v)
				healedBy(t, n, d.Request(v))
				d.SameTable(v, before)
			}
		})
	}
}

// healedBy calls until a volume is healthy. A step that had no effect, as beside a driver
// that does the same, is tried again after a minute.
func healedBy(t *testing.T, n *harness.Node, req *healerpb.NodeHealerRequest) {
	t.Helper()
	for end := time.Now().Add(time.Minute + harness.Patience); ; time.Sleep(10 * time.Millisecond) {
		a, err := n.Call(req)
		if err == nil && !a.GetAbnormal() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is not healed: %q, %v", a.GetMessage(), err)
		}
	}
}

// TestRestageOfMany has the daemons of all volumes die at once, as with the pod that they
// run in, and heals them side by side.
func TestRestageOfMany(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	var all []*harness.Volume
	for i := range 8 {
		all = append(all, d.NewVolume(fmt.Sprint("v", i)))
		n.Expect("healthy", d.Request(all[i]))
	}
	for _, v := range all {
		d.KillDaemon(v)
	}
	for healed := 0; healed < len(all); { // the driver serves one call at a time
		healed = 0
		var begun []*harness.Begun
		for _, v := range all {
			begun = append(begun, n.Begin(d.Request(v)))
		}
		for _, b := range begun {
			if a := b.Answer(); a != nil && !a.GetAbnormal() {
				healed++
			}
		}
	}
	for _, v := range all {
		if layers := harness.Layers(t, v.Staging); len(layers) != 1 {
			t.Errorf("%d mounts at %s", len(layers), v.Staging)
		}
	}
}

// TestDriverIsBack kills a driver with the daemons of its volumes, as its pod's end does. The
// loop's first try meets nobody; when the driver is back, all volumes are back at once, and
// not when the next try would have come. (The daemon of a volume that has only just come is not
// followed yet: its next turn finds it dead.)
func TestDriverIsBack(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=heal", "--check-interval=10s", "--restage-driver="+harness.Driver+"=unmount-first")
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true})
	n.Start()
	var all []*harness.Volume
	for i := range 20 {
		v := d.NewVolume(fmt.Sprint("v", i))
		n.StartContainer(harness.ContainerSpec{Name: v.ID, Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}}})
		n.Expect("healthy", d.Request(v))
		all = append(all, v)
	}
	d.Stop()
	harness.Eventually(t, "each was checked, and one was tried", func() bool {
		audit, err := os.ReadFile(n.StateDir() + "/audit.log")
		return err == nil && strings.Contains(string(audit), `"step":"restage"`) && strings.Count(n.Log.String(), `verdict="abnormal"`) >= len(all)
	})
	d.Start()
	back := time.Now()
	for _, v := range all {
		harness.Eventually(t, "the volume takes data without a call", func() bool {
			return os.WriteFile(v.MountPoint()+"/written", nil, 0o600) == nil
		})
		if layers := harness.Layers(t, v.Staging); len(layers) != 1 {
			t.Errorf("%d mounts at %s", len(layers), v.Staging)
		}
	}
	t.Logf("%d volumes take data %s after the driver came back", len(all), time.Since(back))
}
