package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestLatency compares a check of a healthy volume with the cheapest call there
// is, over the same connection.
func TestLatency(t *testing.T) {
	lines := wanted(t, "tmpfs", "ext4", "tmpfs-anew")
	n := harness.NewNode(t, asReleased).Start()
	if lines["tmpfs"] {
		latencyOf{n, [][]byte{encode(t, newTmpfs(n, "tmpfs").Request())}}.
			line("NodeHealer on a healthy tmpfs volume / Identity.Probe, p50", atMost(1.6, ""))
	}
	if lines["ext4"] {
		latencyOf{n, [][]byte{encode(t, newLoops(n).volume("ext4").Request())}}.
			line("NodeHealer on a healthy ext4 loop volume, O_DIRECT read / Identity.Probe, p50", atMost(2.5, ""))
	}
	if lines["tmpfs-anew"] {
		var many [][]byte
		for i := range 1_000 {
			many = append(many, encode(t, newTmpfs(n, fmt.Sprintf("tmpfs-%04d", i)).Request()))
		}
		latencyOf{n, many}.line("NodeHealer on 1,000 tmpfs volumes in turn / Identity.Probe, none twice within a second", untold(""))
	}
}

// latencyOf is the volumes that a client calls for in turn: one again and again,
// or so many that none is called for twice within a second, for as long as which
// the server keeps some of what it saw.
type latencyOf struct {
	node     *harness.Node
	requests [][]byte
}

func (l latencyOf) line(what string, must target) {
	q := latencyQuestion{Socket: l.node.Socket(), Requests: l.requests, Calls: 10_000, Batch: 50}
	if len(l.requests) > 1 {
		q.Calls, q.Pause = 5_000, 1100*time.Millisecond
	}
	got := ask[latencyAnswer](newAgent(l.node.T), "latency", q)
	row(what, fmt.Sprintf("%s / %s", micro(got.Healer.median()), micro(got.Probe.median())),
		ratio(got.Healer.median(), got.Probe.median()), must)
}

// asReleased takes back the verbosity that tests run the server with.
const asReleased = "-v=0"

type latencyQuestion struct {
	Socket   string
	Requests [][]byte
	// Calls of each kind, in batches that take turns.
	Calls, Batch int
	// Pause follows when all volumes have had their turn.
	Pause time.Duration
}

type latencyAnswer struct{ Healer, Probe times }

// measureLatency is a client that calls again and again, one call at a time.
func measureLatency(q latencyQuestion) (latencyAnswer, error) {
	c, err := dial(q.Socket)
	if err != nil {
		return latencyAnswer{}, err
	}
	defer c.Close()
	requests, err := decode(q.Requests)
	if err != nil {
		return latencyAnswer{}, err
	}
	probe := identity.NewIdentityClient(c)
	ready := func() error {
		_, err := probe.Probe(context.Background(), &identity.ProbeRequest{})
		return err
	}
	next := 0
	check := func() error {
		next++
		return healthy(c, requests[next%len(requests)])
	}
	var a latencyAnswer
	for done := -max(warmUp, len(requests)); done < q.Calls; done += q.Batch {
		if next%len(requests) == 0 {
			time.Sleep(q.Pause)
		}
		if a.Healer, err = timed(a.Healer, check, q.Batch); err != nil {
			return a, err
		}
		if a.Probe, err = timed(a.Probe, ready, q.Batch); err != nil {
			return a, err
		}
		if done < 0 {
			a = latencyAnswer{}
		}
	}
	return a, nil
}

// warmUp is how many calls are not counted, at least.
const warmUp = 500

// timed appends the times of n calls.
func timed(to times, call func() error, n int) (times, error) {
	for range n {
		start := time.Now()
		if err := call(); err != nil {
			return to, err
		}
		to = append(to, time.Since(start))
	}
	return to, nil
}
