package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

const (
	// batchGap is how long a routine inspection waits for others.
	batchGap = time.Millisecond
	// batchMax bounds what one worker is asked at once: that many prompt answers come
	// within batchTimeLimit.
	batchMax = 20
	// batchTimeLimit is how long one storage that does not answer may hold up the others of its
	// batch. It is far below slowCheck of internal/loop: the loop makes few slow checks at once.
	batchTimeLimit = 250 * time.Millisecond
	// promptAnswer is how soon a storage has to answer to be asked with others the next time.
	promptAnswer = 10 * time.Millisecond
)

// batching has the routine inspections that come at the same time made by one worker, one
// after the other: to wake a process costs several times what an inspection does.
//
// Only storages whose last answer was prompt are asked with others. When one of a batch does not answer
// all the same, each of them is asked alone, and only that counts as its answer: that the worker of a
// batch waits says nothing of the others.
type batching struct {
	prompt cache[storage, struct{}]

	mu      sync.Mutex
	waiting *inspections
	// stuck closes when a worker ends that could not be ended; until then no other one is
	// asked about several storages.
	stuck <-chan struct{}
}

// inspections are asked of one worker.
type inspections struct {
	queries []ops.InspectQuery
	of      []storage
	// done is closed once there are answers, or when there will be none: then answers is
	// nil.
	done    chan struct{}
	answers []ops.InspectAnswer
}

// ask has a worker inspect what is on a storage.
func (n *Node) ask(ctx context.Context, s storage, routine bool, q ops.InspectQuery) (ops.InspectAnswer, error) {
	if a, answered := n.askInBatch(ctx, s, routine, q); answered {
		return a, nil
	}
	op := ops.Inspect
	if _, silent := n.probes.silent.get(s); silent {
		op = op.Doubted()
	}
	answers, err := worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, op, []ops.InspectQuery{q})
	if timedOut(ctx, err) {
		n.probes.silent.add(s, struct{}{})
	} else if err == nil {
		n.probes.silent.remove(s)
	}
	if err == nil && len(answers) != 1 {
		err = errAnswers
	}
	if err != nil {
		n.batch.note(s, routine, false)
		return ops.InspectAnswer{}, err
	}
	n.batch.note(s, routine, answers[0].Elapsed <= promptAnswer)
	return answers[0], nil
}

var errAnswers = errors.New("the worker left out an answer")

// note keeps whether a storage may be asked with others.
func (t *batching) note(s storage, routine, prompt bool) {
	switch {
	case !prompt:
		t.prompt.remove(s)
	case routine:
		t.prompt.add(s, struct{}{})
	}
}

// askInBatch asks with others; answered is false when the caller has to ask alone.
func (n *Node) askInBatch(ctx context.Context, s storage, routine bool, q ops.InspectQuery) (a ops.InspectAnswer, answered bool) {
	t := &n.batch
	if _, prompt := t.prompt.get(s); !routine || !prompt {
		return a, false
	}
	all, at := t.join(s, q)
	if all == nil {
		return a, false
	}
	if at == 0 {
		// The goroutine ends with its worker, for which the pool's Close waits. No caller
		// waits for it: a worker that has to be killed may take longer than the timeout.
		go n.askAll(context.WithoutCancel(ctx), all)
	}
	select {
	case <-all.done:
	case <-ctx.Done():
		return a, false
	}
	if all.answers == nil {
		return a, false
	}
	a = all.answers[at]
	t.note(s, routine, a.Elapsed <= promptAnswer)
	return a, true
}

// join adds a query to those that wait. The first of them has to ask.
func (t *batching) join(s storage, q ops.InspectQuery) (all *inspections, at int) {
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
	if t.waiting == nil || len(t.waiting.queries) == batchMax {
		t.waiting = &inspections{done: make(chan struct{})}
	}
	all, at = t.waiting, len(t.waiting.queries)
	all.queries, all.of = append(all.queries, q), append(all.of, s)
	return all, at
}

// close keeps others from joining.
func (t *batching) close(all *inspections) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == all {
		t.waiting = nil
	}
}

// askAll asks when others had the time to join, and releases the callers at its timeout at
// the latest.
func (n *Node) askAll(ctx context.Context, all *inspections) {
	time.Sleep(batchGap)
	t := &n.batch
	t.close(all)
	ctx, cancel := context.WithTimeout(ctx, n.batchTimeout())
	defer cancel()
	giveUp := func() {
		for _, s := range all.of {
			t.prompt.remove(s) // until it has answered alone
		}
		close(all.done)
	}
	stop := context.AfterFunc(ctx, giveUp)
	answers, err := worker.Call(ctx, n.cfg.Pool, ops.Inspect, all.queries)
	switch inTime := stop(); {
	case inTime && err == nil && len(answers) == len(all.queries):
		all.answers = answers
		close(all.done)
	case inTime:
		giveUp()
	}
	if ended := ended(err); ended != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stuck = ended
	}
}

// batchTimeout is the time for finding a worker and for its answers.
func (n *Node) batchTimeout() time.Duration { return min(batchTimeLimit, n.cfg.ProbeTimeout) }
