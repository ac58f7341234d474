package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestWatch measures the node's own loop: what 1,000 healthy volumes cost, and how soon
// it notices what goes wrong with one of them.
func TestWatch(t *testing.T) {
	lines := wanted(t, "watch-cpu", "watch-noticed")
	n := harness.NewNode(t, asReleased, "--loop=observe", "--check-interval=1m")
	n.AnyDriver = true
	socket := n.Dir + "/metrics/s"
	n.Args = append(n.Args, "--metrics-socket=unix://"+socket)
	n.Start()
	var all []*harness.Volume
	for i := range 1_000 {
		all = append(all, n.NewVolume("tmpfs", fmt.Sprintf("volume-%04d", i)))
	}
	if lines["watch-cpu"] {
		time.Sleep(2 * watchFor) // until each was checked, and has its record
		before := watchCPU(n)
		time.Sleep(watchFor)
		used := watchCPU(n) - before
		row("CPU of server and workers for the loop, 1,000 healthy tmpfs volumes, each once a minute",
			fmt.Sprintf("%s in %s, %s for a check", milli(used), watchFor, micro(used/1_000)), 100*float64(used)/float64(watchFor), atMost(1, " %"))
		now := memoryOf(n)
		row("resident memory of server and idle workers meanwhile", now.String(), mebi(now.resident()), atMost(40, " MiB"))
		row("the same, shared pages counted once", now.shares(), mebi(now.share()), untold(" MiB"))
	}
	if lines["watch-noticed"] {
		m := noticing{n}
		noticed := m.lostMounts(all[:20])
		out := harness.Scrape(t, socket)
		of := `node_healer_check_duration_seconds_%s{origin="loop",outcome="abnormal"}`
		check := 1000 * harness.Metric(t, out, fmt.Sprintf(of, "sum")) / harness.Metric(t, out, fmt.Sprintf(of, "count"))
		row("a lost mount among them leads to a check after, p50", fmt.Sprintf("its answer after %.0f ms, of which the check takes %.0f ms", noticed, check), noticed-check, atMost(100, " ms"))
		row("the death of a FUSE daemon among them is noticed after, p50", "", m.deaths(10), atMost(100, " ms"))
	}
}

// watchFor is how long the loop is measured: an interval.
const watchFor = time.Minute

// watchCPU is the CPU time of the server and of all its workers, those that have ended
// included.
func watchCPU(n *harness.Node) time.Duration {
	used := usedBy(n.T, n.PID())
	for _, w := range n.Workers() {
		used += usedBy(n.T, w)
	}
	return used
}

// noticing waits for what the log of a node says.
type noticing struct{ n *harness.Node }

// after returns how long it takes until the log says that a volume is abnormal.
func (m noticing) after(id string, breaks func()) time.Duration {
	m.n.T.Helper()
	line := `"A watched volume changed" volume_id="` + id + `" driver="` + harness.Driver + `" verdict="abnormal"`
	breaks()
	start := time.Now()
	harness.Eventually(m.n.T, id+" is noticed", func() bool { return strings.Contains(m.n.Log.String(), line) })
	return time.Since(start)
}

// lostMounts returns the median in milliseconds. A container has each volume mounted:
// without one an empty path may be a pod that ends.
func (m noticing) lostMounts(volumes []*harness.Volume) float64 {
	var took times
	for i, v := range volumes {
		c := m.n.NewContainer(harness.PodUID, v.MountPoint())
		time.Sleep(2 * time.Second) // its own mounts are changes, too
		took = append(took, m.after(fmt.Sprintf("volume-%04d", i), v.Unpublish))
		c.Kill()
		v.PublishAgain()
	}
	return float64(took.median()) / float64(time.Millisecond)
}

func (m noticing) deaths(count int) float64 {
	var took times
	for i := range count {
		id := fmt.Sprint("served-", i)
		v, fs := m.n.NewFUSEVolume(id, faultfs.Config{})
		m.n.Expect("healthy", v.Request())
		time.Sleep(3 * time.Second) // until the daemon is followed
		took = append(took, m.after(id, fs.Kill))
	}
	return float64(took.median()) / float64(time.Millisecond)
}
