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
	wanted(t, "tmpfs")
	n := harness.NewNode(t, asReleased).Start()
	var many [][]byte
	for i := range 1_000 {
		many = append(many, encode(t, newTmpfs(n, fmt.Sprintf("tmpfs-%04d", i)).Request()))
	}
	latencyOf{n, many}.line("NodeHealer on 1,000 healthy tmpfs volumes in turn / Identity.Probe, p50", atMost(3.5, ""))
}

// latencyOf is the volumes that a client calls for in turn.
type latencyOf struct {
	node     *harness.Node
	requests [][]byte
}

func (l latencyOf) line(what string, must target) {
	got := ask[latencyAnswer](newAgent(l.node.T), "latency", latencyQuestion{
		Socket: l.node.Socket(), Requests: l.requests, Calls: 5_000, Batch: 50,
	})
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
