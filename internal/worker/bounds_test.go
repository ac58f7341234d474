package worker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
)

func TestMaxBoundsTheWorkers(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.Max, c.Idle = 2, 1 })
	var busy sync.WaitGroup
	fifo, write := newFIFO(t)
	for range 2 {
		busy.Go(func() {
			if _, err := worker.Call(within(t, time.Minute), p, listen, fifo); err != nil {
				t.Error(err)
			}
		})
	}
	for p.Stats().Started < 2 {
		time.Sleep(time.Millisecond)
	}
	if _, err := worker.Call(within(t, 50*time.Millisecond), p, whoami, 0); !errors.Is(err, worker.ErrNoWorker) {
		t.Errorf("got %v, want ErrNoWorker", err)
	}
	// One that waits gets the first worker that becomes free.
	time.AfterFunc(10*time.Millisecond, write)
	mustCall(t, p, whoami)
	write()
	busy.Wait()
	if s := p.Stats(); s.Started != 2 || s.Living > 1 {
		t.Errorf("%+v, want 2 started and at most 1 idle", s)
	}
}

func TestManyCallersAreAllAnswered(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.Max, c.Idle = 4, 4 })
	var callers sync.WaitGroup
	var answers atomic.Int64
	for range 64 {
		callers.Go(func() {
			if _, err := worker.Call(within(t, time.Minute), p, whoami, time.Millisecond); err != nil {
				t.Error(err)
				return
			}
			answers.Add(1)
		})
	}
	callers.Wait()
	if answers.Load() != 64 || p.Stats().Living > 4 {
		t.Errorf("%d answers, %+v", answers.Load(), p.Stats())
	}
}

func TestCloseWaitsAndRefuses(t *testing.T) {
	p := newPool(t)
	mustCall(t, p, whoami)
	working := make(chan error, 1)
	fifo, write := newFIFO(t)
	go func() {
		_, err := worker.Call(within(t, time.Minute), p, listen, fifo)
		working <- err
	}()
	for p.Stats().Idle > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.Close(within(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close came back with %v while a worker was at it", err)
	}
	if _, err := worker.Call(within(t, time.Minute), p, whoami, 0); !errors.Is(err, worker.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	write()
	if err := p.Close(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if err := <-working; err != nil {
		t.Errorf("Close cut off a running call: %v", err)
	}
}

// Calls that start workers while the pool closes leave none behind.
func TestCloseAgainstStarts(t *testing.T) {
	for range 10 {
		p := newPool(t, func(c *worker.Config) { c.Max, c.Idle = 8, 1 })
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				_, err := worker.Call(within(t, time.Minute), p, whoami, 0)
				if err != nil && !errors.Is(err, worker.ErrClosed) {
					t.Error(err)
				}
			})
		}
		time.Sleep(2 * time.Millisecond)
		if err := p.Close(within(t, time.Minute)); err != nil {
			t.Error(err)
		}
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
			t.Errorf("Close returned, and a worker lives (wait4: %d, %v)", pid, err)
		}
		callers.Wait()
	}
}
