package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/worker"
)

func TestHungWorkerIsEnded(t *testing.T) {
	for _, op := range []operation.Op[string, int]{hang, deaf} {
		t.Run(op.Name(), func(t *testing.T) {
			p := newPool(t)
			pid := mustCall(t, p, whoami)
			_, err := worker.Call(within(t, 500*time.Millisecond), p, op, "")
			if !errors.Is(err, worker.ErrTimeout) {
				t.Fatalf("got %v, want ErrTimeout", err)
			}
			if !gone(pid) {
				t.Errorf("process %d lives on", pid)
			}
			if next := mustCall(t, p, whoami); next == pid {
				t.Error("the hung process answers again")
			}
		})
	}
}

func TestCallerThatLeavesEndsItsWorker(t *testing.T) {
	p := newPool(t)
	pid := mustCall(t, p, whoami)
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := worker.Call(ctx, p, hang, ""); !errors.Is(err, worker.ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
	if !gone(pid) {
		t.Errorf("process %d lives on", pid)
	}
}

func TestNoDeadlineIsAnError(t *testing.T) {
	p := newPool(t)
	if _, err := worker.Call(context.Background(), p, whoami, 0); err == nil {
		t.Error("a call without a deadline was made")
	}
	if s := p.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
}

// With no time to end, every killed worker counts as stuck.
func TestStuckWorkerTellsWhenItEnded(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.KillWait = time.Nanosecond })
	mustCall(t, p, whoami) // so that a worker is there, and the time is for the operation alone
	_, err := worker.Call(within(t, 500*time.Millisecond), p, hang, "")
	if !errors.Is(err, worker.ErrStuck) {
		t.Fatalf("got %v, want ErrStuck", err)
	}
	if s := p.Stats(); s.Living != 0 {
		t.Errorf("an abandoned worker keeps its slot: %+v", s)
	}
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.As(err, &stuck) {
		t.Fatal("the error does not tell when the worker ends")
	}
	select {
	case <-stuck.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the killed worker never ended")
	}
	if s := p.Stats(); s.Abandoned != 0 {
		t.Errorf("%+v", s)
	}
}
