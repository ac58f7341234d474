package worker

import (
	"context"
	"errors"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
)

// acquire returns a living worker.
func (p *Pool) acquire(ctx context.Context, life operation.Life) (*process, error) {
	for {
		w, err := p.take(ctx, life)
		if life != operation.Pooled || len(p.idle) == 0 {
			p.needed.Store(true)
		}
		if err != nil || !w.ended() {
			return w, err
		}
		p.dismiss(w)
	}
}

// take takes an idle worker, or starts one when none becomes free soon. The last idle one
// is for Pooled operations, which bring it back.
func (p *Pool) take(ctx context.Context, life operation.Life) (*process, error) {
	select {
	case <-p.closed:
		return nil, ErrClosed
	default:
	}
	if life == operation.Pooled || len(p.idle) > 1 {
		select {
		case w := <-p.idle:
			return w, nil
		default:
		}
	}
	switch {
	case life != operation.Pooled:
		select {
		case p.slots <- struct{}{}:
			w, err := p.start(ctx)
			left := ctx.Err() != nil && !errors.Is(context.Cause(ctx), errLate)
			if err == nil || left || errors.Is(err, ErrClosed) {
				return w, err
			}
			select {
			case w := <-p.idle: // no process can be started: any of them will do
				return w, nil
			default:
				return nil, err
			}
		default: // Max workers live: any of them will do
		}
	case len(p.slots) > int(p.leaving.Load()): // one comes back, mostly sooner than another starts
		grow := time.NewTimer(p.cfg.Grow)
		defer grow.Stop()
		select {
		case w := <-p.idle:
			return w, nil
		case <-grow.C:
		case <-p.closed:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ErrNoWorker
		}
	}
	select {
	case w := <-p.idle:
		return w, nil
	case p.slots <- struct{}{}:
		return p.start(ctx)
	case <-p.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ErrNoWorker
	}
}

// start makes a worker for a slot already taken. One that is not ready in time says
// nothing about the storage.
func (p *Pool) start(ctx context.Context) (*process, error) {
	type launched struct {
		w   *process
		err error
	}
	done := make(chan launched, 1)
	select {
	case p.fork <- func() {
		w, err := launch(p.cfg)
		if err == nil {
			// Counted here, where the forker itself still counts: Close may be waiting.
			p.owned.Add(1)
		}
		done <- launched{w, err}
	}:
	case <-p.closed:
		<-p.slots
		return nil, ErrClosed
	case <-ctx.Done():
		<-p.slots
		return nil, ErrNoWorker
	}
	select {
	case l := <-done:
		if l.err != nil {
			<-p.slots
			return nil, l.err
		}
		p.started.Add(1)
		err := l.w.greet(ctx, p.cfg)
		if err == nil {
			return l.w, nil
		}
		p.end(l.w)
		if errors.Is(err, ErrTimeout) {
			err = ErrNoWorker
		}
		return nil, err
	case <-ctx.Done():
	}
	// The process starts late, and the caller has left: end it then.
	go func() {
		if l := <-done; l.err == nil {
			p.end(l.w)
		} else {
			<-p.slots
		}
	}()
	return nil, ErrNoWorker
}
