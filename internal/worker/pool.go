package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
)

// Config says how a pool makes its workers.
type Config struct {
	// Binary is the worker program, Args what follows its name.
	Binary string
	Args   []string
	// Namespace is the mount namespace that workers live in; nil: the server's.
	Namespace *os.File
	// Env is the whole environment of a worker.
	Env []string
	// Max bounds the workers that live at once, not counting abandoned ones.
	Max int
	// Idle is how many workers wait for work, from one to Max; more than that are ended.
	Idle int
	// Linger is after how long one of several idle workers is ended, if nobody needed them all
	// meanwhile: it is looked at each time that this has passed. 0 is never.
	Linger time.Duration
	// Grow is how long a caller waits for a worker to become free before
	// another one is started.
	Grow time.Duration
	// KillWait is how long a killed worker may take to end before it is
	// abandoned.
	KillWait time.Duration
	// Abandoned is called for each worker that is abandoned, with the operation that
	// it ran, and the number of those that have not ended. It must return at once; it
	// may be nil.
	Abandoned func(op string, total int)
}

// Pool owns the worker processes of a server.
type Pool struct {
	cfg   Config
	idle  chan *process
	slots chan struct{} // one token per living worker
	// fork hands launches to the one thread that lives as long as the pool.
	fork   chan func()
	closed chan struct{}
	// owned counts what Close waits for: living workers and the forker.
	owned sync.WaitGroup
	// leaving counts the workers at an operation that is not Pooled.
	leaving   atomic.Int64
	abandoned atomic.Int64
	started   atomic.Int64
	// needed is true when a call used up what was idle, since shrink looked.
	needed    atomic.Bool
	closeOnce sync.Once
}

// Stats is a snapshot of a pool.
type Stats struct {
	// Living workers, idle ones included, abandoned ones not.
	Living int
	Idle   int
	// Abandoned workers wait uninterruptibly in the kernel.
	Abandoned int
	// Started counts workers since the pool was made.
	Started int
}

// NewPool makes an empty pool.
func NewPool(cfg Config) *Pool {
	p := &Pool{
		cfg:    cfg,
		idle:   make(chan *process, cfg.Idle),
		slots:  make(chan struct{}, cfg.Max),
		fork:   make(chan func()),
		closed: make(chan struct{}),
	}
	p.owned.Go(p.forker)
	if cfg.Linger > 0 {
		p.owned.Go(p.shrink)
	}
	return p
}

// forker runs launches on one thread for as long as the pool lives, because a
// worker dies with the thread that forked it.
func (p *Pool) forker() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case launch := <-p.fork:
			launch()
		case <-p.closed:
			return
		}
	}
}

// shrink ends the idle workers that nobody needed for a while, but one: each costs memory.
func (p *Pool) shrink() {
	look := time.NewTicker(p.cfg.Linger)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if !p.needed.Swap(false) && len(p.idle) > 1 {
				p.dismissIdle()
			}
		case <-p.closed:
			return
		}
	}
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	return Stats{
		Living:    len(p.slots),
		Idle:      len(p.idle),
		Abandoned: int(p.abandoned.Load()),
		Started:   int(p.started.Load()),
	}
}

// Close ends the idle workers and waits for those at work, until ctx ends. It
// does not wait for abandoned ones: they have been killed, and end when the
// kernel lets them.
func (p *Pool) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { close(p.closed) })
	p.drain()
	done := make(chan struct{})
	go func() { p.owned.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d workers are still running: %w", len(p.slots), ctx.Err())
	}
}

func (p *Pool) drain() {
	for p.dismissIdle() {
	}
}

// dismissIdle ends an idle worker, if there is one.
func (p *Pool) dismissIdle() bool {
	select {
	case w := <-p.idle:
		p.dismiss(w)
		return true
	default:
		return false
	}
}

// Call has a worker run one operation. ctx must have a deadline: it bounds the
// wait for a worker, the operation and the answer. An error is either one of
// this package's sentinels or what the operation itself returned. Those of a
// worker that cannot be ended have a method Ended: the caller asks no other worker
// about the same storage until that channel closes.
func Call[Q, A any](ctx context.Context, p *Pool, op operation.Op[Q, A], q Q) (A, error) {
	var none A
	if _, bounded := ctx.Deadline(); !bounded {
		return none, fmt.Errorf("%s: a worker is never asked without a deadline", op.Name())
	}
	w, err := p.acquire(ctx, op.Life())
	if err != nil {
		return none, fmt.Errorf("%s: %w", op.Name(), err)
	}
	return run(ctx, p, w, op, q)
}

// CallWithin is Call with a time for the operation itself, which begins when there is a
// worker: that one was late says nothing about the storage. As long a time is allowed
// for finding one.
func CallWithin[Q, A any](ctx context.Context, within time.Duration, p *Pool, op operation.Op[Q, A], q Q) (A, error) {
	wait, found := context.WithTimeoutCause(ctx, within, errLate)
	w, err := p.acquire(wait, op.Life())
	found()
	if err != nil {
		var none A
		return none, fmt.Errorf("%s: %w", op.Name(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return run(ctx, p, w, op, q)
}

// errLate ends the wait for a worker of a caller who still has time for the operation.
var errLate = errors.New("no worker in time")

// run has a worker run one operation, and reuses or ends it.
func run[Q, A any](ctx context.Context, p *Pool, w *process, op operation.Op[Q, A], q Q) (A, error) {
	w.op = op.Name()
	if op.Life() != operation.Pooled {
		p.leaving.Add(1)
		defer p.leaving.Add(-1)
		p.replace() //nolint:contextcheck // the worker is for the calls that follow
	}
	a, broken, err := ask(ctx, w, op, q)
	answered := err == nil
	switch {
	case broken:
		err = p.fail(w, err)
	case op.Life() == operation.Spent:
		if ended := p.dismiss(w); ended != nil {
			err = errors.Join(err, &stuckError{callError{is: ErrLeft}, ended})
		}
	default:
		p.release(w)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", op.Name(), err)
	}
	if !answered {
		var none A
		return none, err
	}
	return a, err
}

// replaceTimeout bounds the start of a worker that no caller waits for.
const replaceTimeout = 10 * time.Second

// replace starts a worker in the place of one that does not come back, or not soon: the
// next call would have to wait until one is started, and it may be for a healthy volume.
// The caller's worker lives, so Close still waits.
func (p *Pool) replace() {
	if len(p.slots)-int(p.leaving.Load()) >= p.cfg.Idle {
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	p.owned.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), replaceTimeout)
		defer cancel()
		if w, err := p.start(ctx); err == nil { // otherwise a call tries it
			p.release(w)
		}
	})
}

// fail ends a worker whose stream can no longer be used, and returns what is known of
// why.
func (p *Pool) fail(w *process, err error) error {
	failed := callError{is: err}
	if errors.Is(err, ErrTimeout) {
		failed.waits = w.waits() // before it is killed
	}
	if ended := p.end(w); ended != nil {
		failed.is = ErrStuck
		return &stuckError{failed, ended}
	}
	return &failed
}

// release makes a worker idle.
func (p *Pool) release(w *process) {
	select {
	case p.idle <- w:
	default:
		p.dismiss(w)
		return
	}
	// Close may have drained just before: drain this one too.
	select {
	case <-p.closed:
		p.drain()
	default:
	}
}

// dismiss lets a worker end by itself: it reads the end of the stream. It returns what
// end returns.
func (p *Pool) dismiss(w *process) <-chan struct{} {
	_ = w.conn.Close()
	if w.reap(time.Now().Add(p.cfg.KillWait)) == nil {
		p.freeSlot()
		return nil
	}
	return p.end(w)
}

// end kills a worker. One that does not end is abandoned: counted, and reaped whenever it
// ends; the channel closes then. It is nil for a worker that has ended.
func (p *Pool) end(w *process) <-chan struct{} {
	_ = w.conn.Close()
	w.kill()
	if w.reap(time.Now().Add(p.cfg.KillWait)) == nil {
		p.freeSlot()
		return nil
	}
	// Its slot becomes free: a volume that hangs costs others nothing.
	total := p.abandoned.Add(1)
	p.freeSlot()
	if p.cfg.Abandoned != nil {
		p.cfg.Abandoned(w.op, int(total))
	}
	ended := make(chan struct{})
	go func() {
		_ = w.reap(time.Time{})
		p.abandoned.Add(-1)
		close(ended)
	}()
	return ended
}

// freeSlot frees the slot of a worker that has ended or was abandoned.
func (p *Pool) freeSlot() {
	<-p.slots
	p.owned.Done()
}
