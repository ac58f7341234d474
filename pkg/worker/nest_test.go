package worker_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// A worker that started processes ends them before it ends itself.
func TestParentIsNotKilledAtItsDeadline(t *testing.T) {
	p := newPool(t)
	mustCall(t, p, whoami)
	began := time.Now()
	_, err := worker.Call(within(t, 50*time.Millisecond), p, parent, 200*time.Millisecond)
	if took := time.Since(began); !errors.Is(err, worker.ErrTimeout) || took < 250*time.Millisecond {
		t.Errorf("after %s: %v", took, err)
	}
	if s := p.Stats(); s.Living != 0 || s.Abandoned != 0 {
		t.Errorf("%+v", s)
	}
}

func TestParentThatCannotEndWhatItStarted(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.KillWait = time.Millisecond })
	mustCall(t, p, whoami) // so that a worker is there, and the time is for the operation alone
	_, err := worker.Call(within(t, 50*time.Millisecond), p, parent, 200*time.Millisecond)
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.Is(err, worker.ErrStuck) || !errors.As(err, &stuck) {
		t.Fatal(err)
	}
	<-stuck.Ended()
}

func TestNest(t *testing.T) {
	p := newPool(t)
	pid := mustCall(t, p, nested)
	if pid == os.Getpid() || !gone(pid) {
		t.Errorf("process %d answered, and lives on", pid)
	}
	mustCall(t, p, whoami)
	// It is killed with its worker.
	if _, err := worker.Call(within(t, 50*time.Millisecond), p, nested, time.Minute); !errors.Is(err, worker.ErrTimeout) {
		t.Error(err)
	}
}
