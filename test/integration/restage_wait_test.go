package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// mounters are the processes that have a path in their arguments.
func mounters(t *testing.T, at string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	harness.Must(t, err)
	for _, file := range all {
		if raw, err := os.ReadFile(file); err == nil && bytes.Contains(raw, []byte(at)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			harness.Must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// impatient does not wait long for a driver that may still be at work.
func impatient(t *testing.T, args ...string) (*harness.Node, *harness.CSIDriver) {
	t.Helper()
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	n.Stop()
	n.Args = append(append(n.Args, "--heal-timeout=20s", "--probe-timeout=3s"), args...)
	return n.Start(), d
}

// patiently starts the server of an impatient node with timeouts that no machine is too slow for,
// asks, and starts it again with those of before.
func patiently(n *harness.Node, ask func()) {
	n.T.Helper()
	before := n.Args
	n.Args = append(slices.Clone(before), "--driver-timeout=1m", "--heal-timeout=5m")
	n.Start()
	ask()
	n.Stop()
	n.Args = before
	n.Start()
}

// TestRestageLeavesTimeToAnswer has a driver take all the time that it may: the volume is found
// abnormal, and what the driver did is said.
func TestRestageLeavesTimeToAnswer(t *testing.T) {
	n, d := impatient(t, "--heal-timeout=8s", "--driver-timeout=8s")
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	d.KillDaemon(v)
	d.Behave(csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeStageVolume": {Hangs: true}}})
	n.Expect("abnormal", d.Request(v), "NodeStageVolume: DEADLINE_EXCEEDED")
}

// TestRestageWaits has a daemon wait for its storage for longer than the driver may take, and
// then the server be killed: it is never given a second daemon beside the first, and nothing is
// bare meanwhile. When the daemon gives up, the volume is healed.
func TestRestageWaits(t *testing.T) {
	const waits = "has the staging path in its arguments"
	n, d := impatient(t, "--driver-timeout=3s")
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before := d.Table(v)
	one := func() int {
		t.Helper()
		pids := mounters(t, v.Staging)
		if len(pids) != 1 {
			t.Fatalf("processes %v mount at the staging path", pids)
		}
		return pids[0]
	}
	heals := func() {
		t.Helper()
		harness.Must(t, unix.Kill(one(), unix.SIGKILL))
		d.Behave(csidriver.Mode{})
		harness.Eventually(t, "the volume is healed", func() bool {
			return strings.HasPrefix(n.Message(d.Request(v)), "heal")
		})
		one()
		d.SameTable(v, before)
	}
	late := csidriver.Mode{MountsAfter: time.Hour}

	d.KillDaemon(v)
	d.Behave(late)
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed", "NodeStageVolume: DEADLINE_EXCEEDED")
	disconnected(t, v.Staging)
	n.Expect("abnormal", d.Request(v), "Refused: ")
	waiting := func() bool { return len(mounters(t, v.Staging)) == 1 }
	harness.Eventually(t, "a daemon waits", waiting)
	harness.Eventually(t, "the driver is no longer waited for, but its daemon", func() bool {
		one()
		return strings.Contains(n.Message(d.Request(v)), waits)
	})
	disconnected(t, v.Staging)
	heals()

	d.KillDaemon(v)
	d.Behave(late)
	b := n.Begin(d.Request(v))
	harness.Eventually(t, "a daemon waits", waiting)
	n.Kill()
	_ = b.Err()
	patiently(n, func() { // the record has the call
		n.Expect("abnormal", d.Request(v), "may still be at work since ")
		disconnected(t, v.Staging)
		n.Expect("abnormal", d.Request(v), "Refused: ", "may still be at work since ")
	})
	heals()
}

// TestRestageOfADaemonThatGivesUp has the driver answer OK, and its daemon mount, answer nothing
// and take its mount off: the volume is healed all the same.
func TestRestageOfADaemonThatGivesUp(t *testing.T) {
	n, d := impatient(t)
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before := d.Table(v)
	d.KillDaemon(v)
	d.Behave(csidriver.Mode{GivesUp: true})
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point. ")
	harness.Must(t, unix.Kill(daemonOf(t, d, v), unix.SIGTERM))
	harness.Eventually(t, "the daemon gave up", func() bool { return len(harness.Layers(t, v.Staging)) == 0 })
	d.Behave(csidriver.Mode{})
	n.Stop()
	n.Start() // what it knew stands in the record
	harness.Eventually(t, "the volume is healed", func() bool {
		return strings.HasPrefix(n.Message(d.Request(v)), "heal")
	})
	d.SameTable(v, before)
}
