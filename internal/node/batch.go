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

// manner is how a storage answered when it was last asked.
type manner int

const (
	wasPrompt manner = iota + 1
	// wasSilent: a worker that asked about it alone got no answer.
	wasSilent
)

// batching has the routine inspections that come at the same time made by one worker, one
// after the other: to wake a process costs several times what an inspection does.
//
// Only storages whose last answer was prompt are asked with others. When one of a batch does not answer
// all the same, each of them is asked alone, and only that counts as its answer: that the worker of a
// batch waits says nothing of the others.
type batching struct {
	mu      sync.Mutex
	waiting *inspections
	// stuck closes when a worker ends that could not be ended; until then no other one is
	// asked about several storages.
	stuck <-chan struct{}
}

// inspections are asked of one worker.
type inspections struct {
	queries []ops.InspectQuery
	// done is closed once there are answers, or when there will be none: then answers is
	// nil.
	done    chan struct{}
	answers []ops.InspectAnswer
}

func (n *Node) ask(ctx context.Context, s storage, routine bool, q ops.InspectQuery) (ops.InspectAnswer, error) {
	last, _ := n.answered.get(s)
	if routine && last == wasPrompt {
		if a, answered := n.askInBatch(ctx, q); answered {
			n.note(s, a.Elapsed)
			return a, nil
		}
		n.answered.remove(s) // until it has answered alone
	}
	op := ops.Inspect
	if last == wasSilent {
		op = op.Doubted()
	}
	answers, err := worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, op, []ops.InspectQuery{q})
	if timedOut(ctx, err) {
		n.answered.add(s, wasSilent)
	}
	if err == nil && len(answers) != 1 {
		err = errAnswers
	}
	if err != nil {
		return ops.InspectAnswer{}, err
	}
	n.note(s, answers[0].Elapsed)
	return answers[0], nil
}

var errAnswers = errors.New("the worker left out an answer")

// note keeps whether a storage that answered may be asked with others.
func (n *Node) note(s storage, elapsed time.Duration) {
	if elapsed <= promptAnswer {
		n.answered.add(s, wasPrompt)
	} else {
		n.answered.remove(s)
	}
}

// askInBatch asks with others; answered is false when the caller has to ask alone.
func (n *Node) askInBatch(ctx context.Context, q ops.InspectQuery) (a ops.InspectAnswer, answered bool) {
	all, at := n.batch.join(q)
	if all == nil {
		return a, false
	}
	if at == 0 {
		// The goroutine ends with its worker, for which the pool's Close waits. No caller
		// waits for it: a worker that has to be killed may take longer than the timeout.
		go n.askAll(context.WithoutCancel(ctx), all)
	}
	wait, cancel := context.WithTimeout(ctx, batchGap+batchTimeLimit)
	defer cancel()
	select {
	case <-all.done:
	case <-wait.Done():
		return a, false
	}
	if all.answers == nil {
		return a, false
	}
	return all.answers[at], true
}

// join adds a query to those that wait. The first of them has to ask.
func (t *batching) join(q ops.InspectQuery) (all *inspections, at int) {
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
	t.waiting.queries = append(t.waiting.queries, q)
	return t.waiting, len(t.waiting.queries) - 1
}

// askAll asks when others had the time to join.
func (n *Node) askAll(ctx context.Context, all *inspections) {
	defer close(all.done)
	time.Sleep(batchGap)
	t := &n.batch
	t.mu.Lock()
	if t.waiting == all {
		t.waiting = nil
	}
	t.mu.Unlock()
	// For finding a worker and for its answers.
	ctx, cancel := context.WithTimeout(ctx, min(batchTimeLimit, n.cfg.ProbeTimeout))
	defer cancel()
	answers, err := worker.Call(ctx, n.cfg.Pool, ops.Inspect, all.queries)
	if err == nil && len(answers) == len(all.queries) {
		all.answers = answers
	}
	if ended := ended(err); ended != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stuck = ended
	}
}
