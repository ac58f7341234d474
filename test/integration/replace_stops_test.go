package integration

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// stopReplace kills the daemon behind a volume, calls when there is a new one,
// and waits for a worker to stop at one of the given instants of the replacement.
func stopReplace(t *testing.T, instants string, breaks ...func(s *served)) (halfway, *served) {
	t.Helper()
	n := harness.NewNode(t, "--standalone")
	n.Pause = instants
	return stopReplaceOn(n.Start(), breaks...)
}

// stopReplaceOn is stopReplace on a node whose server runs.
func stopReplaceOn(n *harness.Node, breaks ...func(s *served)) (halfway, *served) {
	n.T.Helper()
	s := newServed(n, "vol at an instant").known()
	for _, b := range breaks {
		b(s)
	}
	s.die()
	h := halfway{t: n.T, n: n, v: s.Volume, healthy: s.disk.Renumbered(s.healthy), sum: s.sum}
	h.Begun = n.BeginAndStop(s.Request())
	return h, s
}

// atEachStop calls, looks around each time a worker stops, and lets it go on.
func atEachStop(n *harness.Node, req *healerpb.NodeHealerRequest, look func()) *healerpb.NodeHealerResponse {
	n.T.Helper()
	call, answered := n.Begin(req), make(chan struct{})
	go func() {
		defer close(answered)
		call.Answer()
	}()
	for begun := time.Now(); ; {
		select {
		case <-answered:
			return call.Answer()
		case <-time.After(harness.Pause(begun)):
		}
		if worker := stopped(n); worker != 0 {
			look()
			harness.Must(n.T, unix.Kill(worker, unix.SIGCONT))
			begun = time.Now()
		}
	}
}

// stopped returns a worker that waits at an instant, 0 for none.
func stopped(n *harness.Node) int {
	workers := n.Workers()
	if i := slices.IndexFunc(workers, func(pid int) bool { return harness.State(pid) == "T" }); i >= 0 {
		return workers[i]
	}
	return 0
}
