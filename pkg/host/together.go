package host

import (
	"context"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

const (
	// togetherGap is how long a routine inspection waits for others.
	togetherGap = time.Millisecond
	// togetherMax bounds what one worker is asked at once.
	togetherMax = 32
	// togetherTimeout is how long the others may be held up by one that does not answer.
	togetherTimeout = time.Second
	// promptAnswer is how soon an answer comes of a storage that is asked with others.
	promptAnswer = 10 * time.Millisecond
)

// together has the routine inspections that come at the same time made by one worker, one
// after the other: to wake a process costs several times what an inspection does.
//
// Only storages whose last answer was prompt are among them. When one does not answer all
// the same, each of them is asked alone, and only that counts as its answer.
type together struct {
	prompt cache[storage, struct{}]

	mu      sync.Mutex
	waiting *inspections
	// stuck closes when a worker ends that could not be ended; until then no other one is
	// asked about several storages.
	stuck <-chan struct{}
}

// inspections are asked of one worker.
type inspections struct {
	queries []workerops.InspectQuery
	of      []storage
	// done is closed once there are answers, or none: then answers is nil.
	done    chan struct{}
	answers []workerops.InspectAnswer
}

// ask has a worker inspect what is on a storage.
func (n *Node) ask(ctx context.Context, s storage, routine bool, q workerops.InspectQuery) (workerops.InspectAnswer, error) {
	if _, prompt := n.together.prompt.get(s); routine && prompt {
		if a, answered := n.askTogether(ctx, s, q); answered {
			return a, nil
		}
	}
	start := time.Now()
	a, err := worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Inspect, q)
	switch prompt := err == nil && time.Since(start) <= promptAnswer; {
	case !prompt:
		n.together.prompt.remove(s)
	case routine:
		n.together.prompt.add(s, struct{}{})
	}
	return a, err
}

// askTogether asks with others; answered is false when the caller has to ask alone.
func (n *Node) askTogether(ctx context.Context, s storage, q workerops.InspectQuery) (a workerops.InspectAnswer, answered bool) {
	all, at := n.together.join(s, q)
	if all == nil {
		return a, false
	}
	if at == 0 {
		n.askAll(ctx, all)
	}
	select {
	case <-all.done:
	case <-ctx.Done():
		return a, false
	}
	if all.answers == nil {
		return a, false
	}
	return all.answers[at], true
}

// join adds a query to those that wait. The first of them has to ask.
func (t *together) join(s storage, q workerops.InspectQuery) (all *inspections, at int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.stuck:
		t.stuck = nil
	default:
	}
	if t.stuck != nil {
		return nil, 0
	}
	if t.waiting == nil || len(t.waiting.queries) == togetherMax {
		t.waiting = &inspections{done: make(chan struct{})}
	}
	all, at = t.waiting, len(t.waiting.queries)
	all.queries, all.of = append(all.queries, q), append(all.of, s)
	return all, at
}

// close keeps others from joining.
func (t *together) close(all *inspections) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == all {
		t.waiting = nil
	}
}

// askAll asks when others had the time to join.
func (n *Node) askAll(ctx context.Context, all *inspections) {
	defer close(all.done)
	time.Sleep(togetherGap)
	t := &n.together
	t.close(all)
	start := time.Now()
	answers, err := worker.CallWithin(ctx, min(togetherTimeout, n.cfg.ProbeTimeout), n.cfg.Pool, workerops.InspectAll, all.queries)
	if err == nil && len(answers) == len(all.queries) {
		all.answers = answers
	}
	if err != nil || time.Since(start) > promptAnswer*time.Duration(len(all.of)) {
		for _, s := range all.of {
			t.prompt.remove(s)
		}
	}
	if ended := ended(err); ended != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stuck = ended
	}
}
