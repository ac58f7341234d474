package integration

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestCallBesideACheckOfTheLoop has the loop check a volume that hangs, and calls
// meanwhile: the call is answered by the loop's next check at the latest.
func TestCallBesideACheckOfTheLoop(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=observe", "--check-interval=10s", "--probe-timeout=3s")
	socket := filepath.Join(n.Dir, "metrics", "s")
	n.Args = append(n.Args, "--metrics-socket=unix://"+socket)
	n.Start()
	v, fs := n.NewFUSEVolume("hung", faultfs.Config{})
	n.Expect("healthy", v.Request())
	fs.Hang()
	checks := func() int {
		return int(harness.Metric(t, harness.Scrape(t, socket), `node_healer_checks_total{origin="loop"`))
	}
	for range 2 { // the first time nothing is known of it, the second that it hangs
		harness.Eventually(t, "the loop checks the volume", func() bool {
			return harness.Metric(t, harness.Scrape(t, socket), `node_healer_workers{state="busy"}`) > 0
		})
		before, called := checks(), time.Now()
		n.Expect("abnormal", v.Request())
		t.Logf("answered after %s", time.Since(called))
		if after := checks(); after > before+2 { // the second may share the call's answer
			t.Errorf("the loop ended %d checks during the call", after-before)
		}
		harness.Eventually(t, "that check is over", func() bool { return checks() > before })
	}
}

// TestCallDuringAHealOfTheLoop has the loop stop in the middle of a step: a call is turned
// away, another volume is answered for, and when the step goes on the loop heals.
func TestCallDuringAHealOfTheLoop(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--loop=heal", "--check-interval=10s")
	n.Pause = "rebind/moved"
	n.Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "lost")
	n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	before := n.Table()

	v.Unpublish()
	harness.Eventually(t, "the loop is in the middle of a step", func() bool { return stopped(n) != 0 })
	for range 3 {
		if _, err := n.Call(v.Request()); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "is running since") {
			t.Errorf("a call during the heal: %v", err)
		}
	}
	next.untouched()

	harness.Must(t, unix.Kill(stopped(n), unix.SIGCONT))
	harness.Eventually(t, "the loop heals", func() bool {
		return strings.Contains(n.Log.String(), `"A watched volume changed" volume_id="lost" driver="test.csi.example.com" verdict="healed"`)
	})
	n.SameTable(before)
	n.Expect("healthy", v.Request())
	for _, e := range auditOf(t, n) {
		if e.Caller != "loop" {
			t.Errorf("%s at %s was done for %q", e.Step, e.MountPoint, e.Caller)
		}
	}
}
