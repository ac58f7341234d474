package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestLoopObserves loses a bind while a container uses the volume. There is no call:
// the server notices, says so once, and changes nothing.
func TestLoopObserves(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=observe", "--check-interval=10s")
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("tmpfs", "watched")
	n.NewContainer(harness.PodUID, v.MountPoint())
	harness.Eventually(t, "the volume is seen healthy", func() bool {
		records, err := os.ReadDir(n.StateDir() + "/records")
		return err == nil && len(records) == 1
	})
	time.Sleep(time.Second) // a volume that changes all the time is checked once a second
	// An idle worker may come late, and takes two.
	ownFiles := func() int { return openFiles(t, n.PID()) - 2*len(n.Workers()) }
	files := ownFiles()
	const line = `"A watched volume changed" volume_id="watched"`
	v.Unpublish()
	lost, table := time.Now(), n.Table()
	harness.Eventually(t, "the lost bind is noticed", func() bool { return strings.Contains(n.Log.String(), line) })
	t.Logf("noticed within %s", time.Since(lost))
	if log := n.Log.String(); strings.Count(log, line) != 1 || !strings.Contains(log, `verdict="abnormal" found="NotMounted"`) {
		t.Errorf("the log is\n%s", log)
	}
	n.SameTable(table)
	if audit, err := os.ReadFile(n.StateDir() + "/audit.log"); err == nil && len(audit) > 0 {
		t.Errorf("something was done: %s", audit)
	}
	v.PublishAgain()
	harness.Eventually(t, "the recovery is noticed", func() bool { return strings.Count(n.Log.String(), line) == 2 })
	harness.Eventually(t, "no descriptor is left", func() bool { return ownFiles() <= files })
}

// TestLoopNotices kills the daemon of one of two volumes, long before either is due: that
// volume is checked, and only that one.
func TestLoopNotices(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	n := harness.NewNode(t, "--loop=observe", "--check-interval=1h")
	n.AnyDriver = true
	n.Start()
	newNeighbour(n) // the first search for volumes is over when its mount is noticed
	v, fs := n.NewFUSEVolume("served", faultfs.Config{})
	other, otherFS := n.NewFUSEVolume("another", faultfs.Config{})
	for _, volume := range []*harness.Volume{v, other} {
		n.Expect("healthy", volume.Request())
	}
	harness.Eventually(t, "the daemons are followed", func() bool {
		return hasPidfd(t, n.PID(), fs.PID()) && hasPidfd(t, n.PID(), otherFS.PID())
	})
	time.Sleep(2 * time.Second) // until the checks that the mounts caused are over
	fs.Kill()
	died := time.Now()
	const line = `"A watched volume changed" volume_id="served"`
	harness.Eventually(t, "the death is noticed", func() bool { return strings.Contains(n.Log.String(), line) })
	t.Logf("noticed within %s", time.Since(died))
	if log := n.Log.String(); !strings.Contains(log, "Disconnected") || strings.Contains(log, `"A watched volume changed" volume_id="another"`) {
		t.Errorf("the log is\n%s", log)
	}
	if !hasPidfd(t, n.PID(), otherFS.PID()) {
		t.Error("the other daemon is not followed any more")
	}
}

// TestLoopNoticesASuccessor hands a volume's FUSE connection over to another process, long
// after the volume was found and long before it is due. The daemon ends, and then that
// process: both deaths are noticed.
func TestLoopNoticesASuccessor(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	n := harness.NewNode(t, "--loop=observe", "--check-interval=1h", "--probe-timeout=3s")
	n.AnyDriver = true
	n.Start()
	v, fs := n.NewFUSEVolume("served", faultfs.Config{})
	n.Expect("healthy", v.Request())
	harness.Eventually(t, "the daemon is followed", func() bool { return hasPidfd(t, n.PID(), fs.PID()) })
	second := fs.HandOver()
	fs.Kill()
	noticed := func(reasons string) {
		t.Helper()
		line := `"A watched volume changed" volume_id="served" driver="test.csi.example.com" verdict="abnormal" found="` + reasons + `"`
		harness.Eventually(t, "the death is noticed: "+reasons, func() bool { return strings.Contains(n.Log.String(), line) })
	}
	noticed("DaemonHung,NotResponding")
	harness.Eventually(t, "the other process is followed", func() bool { return hasPidfd(t, n.PID(), second.Process.Pid) })
	harness.Must(t, second.Process.Kill())
	died := time.Now()
	noticed("DaemonGone,Disconnected")
	t.Logf("noticed within %s", time.Since(died))
}

// hasPidfd reports whether a process has a pidfd of another one.
func hasPidfd(t *testing.T, pid, other int) bool {
	t.Helper()
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	harness.Must(t, err)
	for _, name := range infos {
		if info, err := os.ReadFile(name); err == nil && strings.Contains(string(info), fmt.Sprintf("\nPid:\t%d\n", other)) {
			return true
		}
	}
	return false
}

// TestLoopHeals kills the daemon of a volume that a container uses, and has the driver
// stage it again. There is no call: the same container reads again. A dry run refuses the
// step.
func TestLoopHeals(t *testing.T) {
	for _, dry := range []bool{true, false} {
		t.Run(fmt.Sprintf("dry run %t", dry), func(t *testing.T) {
			n := harness.NewNode(t, "--loop=heal", "--check-interval=10s", fmt.Sprintf("--dry-run=%t", dry))
			socket := filepath.Join(n.Dir, "metrics", "s")
			n.AnyDriver, n.Args = true, append(n.Args, "--metrics-socket=unix://"+socket)
			n.Start()
			next := newNeighbour(n)
			u := newUsed(n, "rprivate")
			harness.Eventually(t, "both volumes are seen healthy", func() bool {
				records, err := os.ReadDir(n.StateDir() + "/records")
				return err == nil && len(records) == 2
			})
			u.die()
			table := n.Table()
			if dry {
				harness.Eventually(t, "the step is refused", func() bool {
					return strings.Contains(harness.Scrape(t, socket), `node_healer_step_refusals_total{driver="test.csi.example.com",rule="mode",step="replace"}`)
				})
				n.Expect("abnormal", u.Request(), "--dry-run")
				n.SameTable(table)
				return
			}
			harness.Eventually(t, "the volume is healed", func() bool {
				return strings.Contains(n.Log.String(), `"A watched volume changed" volume_id="`+u.Request().GetVolumeId()+`" driver="test.csi.example.com" verdict="healed"`)
			})
			u.works()
			next.untouched()
			audit, err := os.ReadFile(n.StateDir() + "/audit.log")
			harness.Must(t, err)
			if !strings.Contains(string(audit), `"caller":"loop"`) {
				t.Errorf("the audit log is %s", audit)
			}
			n.Expect("healthy", u.Request())
			out := ""
			harness.Eventually(t, "the loop has seen both volumes healthy", func() bool { // a check beside a call comes later
				out = harness.Scrape(t, socket)
				return strings.Contains(out, `node_healer_volumes{condition="Healthy",driver="test.csi.example.com",status="Healthy"} 2`)
			})
			for _, line := range []string{
				`node_healer_heals_total{driver="test.csi.example.com",origin="loop",outcome="healed"} 1`, `node_healer_steps_total{driver="test.csi.example.com",error_type="",provider="containers",step="replace-in-container"} 1`,
				`node_healer_recovery_duration_seconds_count{by="loop"} 1`,
				"\nnode_healer_loop_last_search_timestamp_seconds 1.",
			} {
				if !strings.Contains(out, line) {
					t.Errorf("no %s in\n%s", line, out)
				}
			}
		})
	}
}
