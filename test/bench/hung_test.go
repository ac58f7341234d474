package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

const (
	// hungTimeout is the server's --probe-timeout: its default, as every call
	// that hangs costs a worker each time.
	hungTimeout = 5 * time.Second
	// hungRounds is how often the volumes hang and recover. The medians of the
	// rounds are compared: other work on the machine shows in some of them.
	hungRounds = 5
)

// TestHung measures healthy volumes while 100 others hang, and while these are
// healthy too. These are called all the time, each as soon as its last call has
// run into the probe timeout, and as often while they are healthy.
func TestHung(t *testing.T) {
	wanted(t, "p99")
	n := harness.NewNode(t, asReleased, "--probe-timeout="+hungTimeout.String()).Start()
	var well [][]byte
	disks := newLoops(n)
	for i := range 10 {
		well = append(well, encode(t, newTmpfs(n, fmt.Sprintf("tmpfs-%d", i)).Request()),
			encode(t, disks.volume(fmt.Sprintf("ext4-%d", i)).Request()))
	}
	others := newHundred(n)
	callers, measure := newAgent(t), newAgent(t)
	phase := func(end func()) times {
		called := make(chan backgroundAnswer, 1)
		go func() {
			called <- ask[backgroundAnswer](callers, "background", backgroundQuestion{
				Socket: n.Socket(), Requests: others.requests, For: 2 * hungTimeout, Every: hungTimeout,
			})
		}()
		time.Sleep(hungTimeout) // until each was called once
		got := ask[times](measure, "steady", steadyQuestion{Socket: n.Socket(), Requests: well, For: hungTimeout})
		end()
		if a := <-called; len(a.Failed) > 0 {
			t.Errorf("calls for the others failed: %+v", a)
		}
		return got
	}
	nothing := func() {}
	phase(nothing) // each volume is seen for the first time
	var none, hanging []times
	for range hungRounds {
		none = append(none, phase(nothing))
		others.hang()
		hanging = append(hanging, phase(others.recover))
	}
	for _, c := range []struct {
		name  string
		share float64
		must  target
	}{
		{"p99", 0.99, atMost(1.5, "")}, {"p50", 0.5, untold("")}, {"p99.9", 0.999, untold("")},
	} {
		h, w := typical(hanging, c.share), typical(none, c.share)
		row(c.name+" of healthy volumes while 100 others hang / while none hangs",
			fmt.Sprintf("%s / %s, medians of %d", micro(h), micro(w), hungRounds), ratio(h, w), c.must)
	}
}

// typical returns the median of a quantile of several rounds.
func typical(rounds []times, share float64) time.Duration {
	var each times
	for _, r := range rounds {
		each = append(each, r.quantile(share))
	}
	return each.median()
}

type steadyQuestion struct {
	Socket   string
	Requests [][]byte
	For      time.Duration
}

// callSteadily calls for healthy volumes in turn, one call at a time.
func callSteadily(q steadyQuestion) (times, error) {
	c, err := dial(q.Socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	requests, err := decode(q.Requests)
	if err != nil {
		return nil, err
	}
	var took times
	for start := time.Now(); time.Since(start) < q.For; {
		for _, r := range requests {
			if took, err = timed(took, func() error { return healthy(c, r) }, 1); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}
