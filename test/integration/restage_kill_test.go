package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageKilled kills the worker, and the server, at every instant of a step: the next
// calls heal the volume. They come last: some have to wait until the driver no longer counts as
// at work.
func TestRestageKilled(t *testing.T) {
	n, d := impatient(t)
	kills := map[string]func(b *harness.Begun){
		"worker": func(b *harness.Begun) { b.KillWorker() },
		"server": func(*harness.Begun) { n.Kill() }, // which ends the worker
	}
	instants := []string{
		"unmount-dead", "unmount-dead/one", // before the driver is called
		"mount-dead/checked", "mount-dead/moved", "mount-dead/verified", // after it failed
	}
	volumes := healthyVolumes(n, d, len(kills)*len(instants))
	before, left := d.Table(volumes...), volumes
	for _, instant := range instants {
		for victim, kill := range kills {
			t.Run(instant+" "+victim, func(*testing.T) {
				v := left[0]
				left = left[1:]
				d.KillDaemon(v)
				n.Stop()
				n.Pause = instant
				n.Start()
				if strings.HasPrefix(instant, "mount-dead") {
					d.Behave(csidriver.Mode{Stage: csidriver.NeverBare})
				}
				b := n.BeginAndStop(d.Request(v))
				kill(b)
				b.LetGo()
				d.Behave(csidriver.Mode{})
				n.Stop()
			})
		}
	}
	n.Pause = ""
	n.Start()
	for _, v := range volumes {
		harness.Eventually(t, v.ID+" is healed", func() bool {
			return strings.HasPrefix(n.Message(d.Request(v)), "healed")
		})
	}
	d.SameTables(volumes, before)
}

// TestRestageKilledInTheDriver kills the server while the driver stages. The driver gets no second
// call beside the first, nothing stays bare, and the volume is healed.
func TestRestageKilledInTheDriver(t *testing.T) {
	n, d := impatient(t, "--driver-timeout=3s") // it waits that much longer after a kill
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before := d.Table(v)
	for _, mode := range []csidriver.Mode{{Takes: 5 * time.Second}, {Answers: map[string]csidriver.Answer{"NodeStageVolume": {Hangs: true}}}} {
		d.KillDaemon(v)
		d.Behave(mode)
		b := n.Begin(d.Request(v))
		harness.Eventually(t, "the dead mount is off, and the driver is about to be called", func() bool {
			return len(harness.Layers(t, v.Staging)) == 0 && recordsHave(t, n, `"pendingStage"`)
		})
		n.Kill()
		_ = b.Err()
		d.Behave(csidriver.Mode{})
		said := ""
		patiently(n, func() { said = n.Message(d.Request(v)) })
		audit, err := os.ReadFile(filepath.Join(n.StateDir(), "audit.log"))
		harness.Must(t, err)
		if mode.Takes == 0 && !strings.Contains(string(audit), "may still be at work since ") {
			t.Errorf("after the kill it did not wait, and says %q", said)
		}
		defer func() { t.Log(said) }()
		harness.Eventually(t, "the volume is healed", func() bool {
			said = n.Message(d.Request(v))
			return strings.HasPrefix(said, "heal")
		})
		d.SameTable(v, before)
		if err := unix.Statfs(v.MountPoint(), new(unix.Statfs_t)); err != nil {
			t.Error(err)
		}
	}
}

// recordsHave reports whether a record of a node's volumes has a text. A record that is being
// written has another name: a server that is killed now has not recorded it.
func recordsHave(t *testing.T, n *harness.Node, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.StateDir(), "records", "*.json"))
	harness.Must(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		raw, err := os.ReadFile(file) // it may just be replaced
		return err == nil && strings.Contains(string(raw), text)
	})
}
