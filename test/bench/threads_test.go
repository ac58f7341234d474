package bench

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// idleWorkers is how many workers the server keeps when there is nothing to do.
const idleWorkers = 2

// TestThreads counts the server's threads and workers before and after many
// calls to volumes that hang. A short probe timeout does: the count is of what
// stays, and the calls are as many.
func TestThreads(t *testing.T) {
	wanted(t, "threads")
	n := harness.NewNode(t, asReleased, "--probe-timeout=200ms").Start()
	h := newHundred(n)
	a := newAgent(t)
	calls := func(each int) backgroundAnswer {
		return ask[backgroundAnswer](a, "background", backgroundQuestion{Socket: n.Socket(), Requests: h.requests, Calls: each})
	}
	// One after the other: so many at once, for the first time, and with so short
	// a timeout, would be a test of something else.
	for _, r := range h.requests {
		_ = ask[time.Duration](a, "sweep", sweepQuestion{Socket: n.Socket(), Requests: [][]byte{r}, Callers: 1, Rounds: 2})
	}
	awaitQuiet(n)
	before := countTasks(n)
	h.hang()
	start := time.Now()
	got := calls(100)
	took := time.Since(start)
	// A check that came too late for want of CPU time is an error, and says so.
	if got.Healthy > 0 {
		t.Errorf("volumes that hang: %+v", got)
	}
	awaitQuiet(n)
	after := countTasks(n)
	row("threads and workers after 10,000 calls to 100 hung volumes, over those before",
		fmt.Sprintf("%s; before %s; %d errors; in %.1f s", after, before, 10_000-got.Abnormal, took.Seconds()), float64(after.all()-before.all()), atMost(100+idleWorkers, ""))
	h.recover()
	awaitQuiet(n)
	end := countTasks(n)
	row("the same, once they answer again", end.String(), float64(end.all()-before.all()), untold(""))
}

// awaitQuiet waits until the server has had the same workers for a second: those
// that are idle, and those that cannot be ended.
func awaitQuiet(n *harness.Node) {
	n.T.Helper()
	var last []int
	var since time.Time
	harness.Eventually(n.T, "only idle and abandoned workers are left", func() bool {
		if now := n.Workers(); since.IsZero() || !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

// tasks counts a server's threads and its worker processes.
type tasks struct{ threads, workers int }

func (k tasks) all() int { return k.threads + k.workers }

func (k tasks) String() string { return fmt.Sprintf("%d threads, %d workers", k.threads, k.workers) }

func countTasks(n *harness.Node) tasks {
	n.T.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.PID()))
	harness.Must(n.T, err)
	return tasks{threads: len(threads), workers: len(n.Workers())}
}
