package loop

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// runNodes has a loop run on each node, all started at one instant, until do returns, in
// virtual time.
func runNodes(t *testing.T, nodes []*fakeNode, do func()) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		for _, n := range nodes {
			n.changes = make(chan struct{}, 1)
			l := New(Config{Node: n, Engine: n, Events: n.SuperblockEvents, Publish: n.publish, Interval: time.Minute, Action: n.does})
			ended.Go(func() { l.Run(ctx) })
		}
		do()
		cancel()
		ended.Wait()
	})
}

// Two nodes whose servers start at one instant do not check their volumes at the same
// times, neither at first nor later.
func TestNodesThatStartTogetherCheckAtOtherTimes(t *testing.T) {
	const volumes = 300
	nodes := []*fakeNode{many(volumes), many(volumes)}
	runNodes(t, nodes, func() {
		start := time.Now()
		time.Sleep(4 * time.Minute)
		first, second := nodes[0].since(start), nodes[1].since(start)
		for turn := range 3 {
			together := 0
			for i := range volumes {
				id := fmt.Sprint("v", i)
				if first[id][turn].Sub(second[id][turn]).Abs() < time.Second {
					together++
				}
			}
			// At random it is one in thirty.
			if together > volumes/10 {
				t.Errorf("turn %d: %d of %d volumes were checked within a second by both nodes", turn, together, volumes)
			}
		}
	})
}

// However many nodes start at one instant, what they have in common sees no turn with much more
// than its share of their checks; and of many nodes no second, as each has turns of its own.
func TestNodesThatStartTogetherShareTheTime(t *testing.T) {
	const checks = 600 // of all nodes in a minute
	for count, within := range map[int]time.Duration{2: time.Minute / turns, 100: time.Second} {
		t.Run(fmt.Sprint(count, " nodes"), func(t *testing.T) {
			var nodes []*fakeNode
			for range count {
				nodes = append(nodes, many(checks/count))
			}
			runNodes(t, nodes, func() {
				start := time.Now()
				time.Sleep(4 * time.Minute)
				parts, all := map[int]int{}, 0
				for _, n := range nodes {
					for _, at := range n.since(start) {
						for _, one := range at {
							parts[int(one.Sub(start)/within)]++
							all++
						}
					}
				}
				if all < 3*checks {
					t.Errorf("%d checks in four minutes", all)
				}
				for part, checked := range parts {
					if share := checks * int(within) / int(time.Minute); checked > 3*share {
						t.Errorf("%d checks in part %d of %s, whose share is %d", checked, part, within, share)
					}
				}
			})
		})
	}
}

// Volumes that came while the loop was off are spread over an interval once it is on.
func TestVolumesThatCameWhileOff(t *testing.T) {
	n := many(1)
	run(t, n, func() {
		time.Sleep(3 * time.Minute)
		n.do(func() { n.action = Off })
		time.Sleep(10 * time.Minute)
		for i := range 1000 {
			n.add(fmt.Sprint("n", i), fmt.Sprint("/pods/n", i))
		}
		n.changed()
		time.Sleep(10 * time.Minute)
		n.do(func() { n.action = Observe })
		start := time.Now()
		time.Sleep(actionGap + 10*time.Second)
		if got := len(n.since(start)); got > 600 {
			t.Errorf("%d of 1000 were checked at once", got)
		}
	})
}
