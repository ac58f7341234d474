package worker_test

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/worker"
)

func TestPooledOperationsShareAProcess(t *testing.T) {
	p := newPool(t)
	first := mustCall(t, p, whoami)
	for range 3 {
		if pid := mustCall(t, p, whoami); pid != first {
			t.Fatalf("process %d answered, and %d was free", pid, first)
		}
	}
	if s := p.Stats(); s != (worker.Stats{Living: 1, Idle: 1, Started: 1}) {
		t.Errorf("%+v", s)
	}
}

func TestSpentOperationEndsItsProcess(t *testing.T) {
	p := newPool(t)
	first := mustCall(t, p, once)
	if !gone(first) {
		t.Errorf("process %d lives on", first)
	}
	if second := mustCall(t, p, once); second == first {
		t.Error("the second call met the same process")
	}
}

// A volume that hangs, and a walk through all processes, take no worker from the calls
// for volumes that answer.
func TestLastIdleWorkerIsForOperationsThatReturn(t *testing.T) {
	for _, op := range []operation.Op[time.Duration, int]{once, doubt} {
		t.Run(op.Name(), func(t *testing.T) {
			p := newPool(t)
			idle := mustCall(t, p, whoami)
			if pid := mustCall(t, p, op); pid == idle {
				t.Error("it took the only idle worker")
			}
			if gone(idle) {
				t.Error("the idle worker has ended")
			}
		})
	}
}

// Who calls while such an operation is under way finds a worker: none is started for the call.
func TestWorkerThatStaysAwayIsReplaced(t *testing.T) {
	for _, op := range []operation.Op[time.Duration, int]{once, doubt} {
		t.Run(op.Name(), func(t *testing.T) {
			p := newPool(t)
			ctx, end := context.WithCancel(within(t, time.Minute))
			ended := make(chan error, 1)
			go func() {
				_, err := worker.Call(ctx, p, op, time.Hour)
				ended <- err
			}()
			for p.Stats().Idle == 0 {
				time.Sleep(time.Millisecond)
			}
			before := p.Stats().Started
			mustCall(t, p, whoami)
			if s := p.Stats(); s.Started != before {
				t.Errorf("%+v, and %d were started before the call", s, before)
			}
			end()
			if err := <-ended; !errors.Is(err, worker.ErrTimeout) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Each idle worker costs memory: the second one ends when nobody needs it.
func TestIdleWorkersThatNobodyNeedsEnd(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.Linger = time.Millisecond })
	for range 2 {
		mustCall(t, p, once)
		for p.Stats().Idle == 0 { // one is started in the place of the spent one
			time.Sleep(time.Millisecond)
		}
		for s := p.Stats(); s.Living != 1 || s.Idle != 1; s = p.Stats() {
			time.Sleep(time.Millisecond)
		}
	}
}

// A storage that answers again costs no process.
func TestDoubtfulOperationThatReturnsKeepsItsProcess(t *testing.T) {
	if pid := mustCall(t, newPool(t), doubt); gone(pid) {
		t.Errorf("process %d has ended", pid)
	}
}

// A worker may die while nobody asks it anything (the kernel's OOM killer): the
// next call is not to pay for it.
func TestDeadIdleWorkerCostsNoCall(t *testing.T) {
	for _, op := range []operation.Op[time.Duration, int]{whoami, once} {
		t.Run(op.Name(), func(t *testing.T) {
			p := newPool(t)
			pid := mustCall(t, p, whoami)
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// Dead is when its end of the socket is closed, before it is reaped.
			waitDead(t, pid)
			again, err := worker.Call(within(t, time.Minute), p, op, 0)
			if err != nil {
				t.Fatalf("an idle worker died, and the next call failed: %v", err)
			}
			if again == pid {
				t.Error("the dead process answered")
			}
		})
	}
}

// A driver that builds the pool in may have all children of its process reaped, and not by who
// started them: a worker that is gone has ended all the same.
func TestWorkersThatSomebodyElseReaps(t *testing.T) {
	signal.Ignore(unix.SIGCHLD) // the kernel reaps
	t.Cleanup(func() {          // Reset leaves it ignored
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGCHLD)
		signal.Stop(c)
	})
	p := newPool(t, func(c *worker.Config) {
		c.Abandoned = func(op string, _ int) { t.Errorf("a worker that has ended counts as stuck in %s", op) }
	})
	for range 3 {
		mustCall(t, p, once)
	}
	if n := p.Stats().Abandoned; n != 0 {
		t.Errorf("%d workers are abandoned", n)
	}
}

// waitDead waits for a child to end without reaping it.
func waitDead(t *testing.T, pid int) {
	t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

// A thread that an operation left behind may wait uninterruptibly after the answer
// has come: with no time to end, every spent worker counts as such.
func TestAnswerOfAWorkerThatCannotBeEnded(t *testing.T) {
	var mu sync.Mutex
	told, total := "", 0
	p := newPool(t, func(c *worker.Config) {
		c.Max, c.Idle = 1, 1 // no worker takes its place, which Close could not end either
		c.KillWait = time.Nanosecond
		c.Abandoned = func(op string, n int) {
			mu.Lock()
			defer mu.Unlock()
			told, total = op, n
		}
	})
	pid, err := worker.Call(within(t, time.Minute), p, once, 0)
	if pid == 0 || !errors.Is(err, worker.ErrLeft) || errors.Is(err, worker.ErrStuck) {
		t.Fatalf("process %d, got %v, want its answer and ErrLeft", pid, err)
	}
	var left interface{ Ended() <-chan struct{} }
	if !errors.As(err, &left) {
		t.Fatal("the error does not tell when the worker ends")
	}
	<-left.Ended()
	if !gone(pid) || p.Stats().Abandoned != 0 {
		t.Errorf("ended, and there is process %d; %+v", pid, p.Stats())
	}
	mu.Lock()
	defer mu.Unlock()
	if told != once.Name() || total != 1 {
		t.Errorf("told of %q, %d in all", told, total)
	}
}
