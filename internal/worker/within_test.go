package worker_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
)

// The time for an operation begins when there is a worker: one that came late
// is no silence.
func TestTimeBeginsWithTheWorker(t *testing.T) {
	const limit = 2 * time.Second
	p := newPool(t, func(c *worker.Config) { c.Max, c.Idle = 1, 1 })
	both := func() error {
		mustCall(t, p, whoami)
		answers := make(chan error, 2)
		for range cap(answers) { // each takes most of it, one after the other
			go func() {
				_, err := worker.CallWithin(context.Background(), limit, p, whoami, limit*6/10)
				answers <- err
			}()
		}
		return errors.Join(<-answers, <-answers)
	}
	err := both()
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); { // on a busy machine it may take longer
		err = both()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestNothingComesWithin(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.Max, c.Idle = 1, 1 })
	if _, err := worker.CallWithin(context.Background(), 50*time.Millisecond, p, hang, ""); !errors.Is(err, worker.ErrTimeout) && !errors.Is(err, worker.ErrNoWorker) {
		t.Errorf("an operation that hangs: %v", err)
	}
	mustCall(t, p, whoami)
	busy := make(chan error)
	fifo, write := newFIFO(t)
	go func() {
		_, err := worker.Call(within(t, time.Minute), p, listen, fifo)
		busy <- err
	}()
	for p.Stats().Idle > 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := worker.CallWithin(context.Background(), 20*time.Millisecond, p, whoami, 0); !errors.Is(err, worker.ErrNoWorker) {
		t.Errorf("no worker is free: %v", err)
	}
	write()
	if err := <-busy; err != nil {
		t.Error(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := worker.CallWithin(over, time.Minute, p, hang, ""); err == nil {
		t.Error("a caller that has left is answered")
	}
	mustCall(t, p, whoami)
}

// A program that never says that it lives is no word about what it was to be
// asked, and is not left behind.
func TestWorkerThatDoesNotComeToLife(t *testing.T) {
	yes, err := exec.LookPath("yes")
	if err != nil {
		t.Fatal(err)
	}
	p := newPool(t, func(c *worker.Config) { c.Binary = yes })
	for range 3 {
		if _, err := worker.Call(within(t, 50*time.Millisecond), p, whoami, 0); !errors.Is(err, worker.ErrNoWorker) {
			t.Errorf("got %v, want ErrNoWorker", err)
		}
	}
	for p.Stats().Living > 0 { // those that came too late end by themselves
		time.Sleep(time.Millisecond)
	}
}

// The last idle worker is spent for a caller who waits, and not for one who has left.
func TestLateStartAndTheIdleWorker(t *testing.T) {
	yes, err := exec.LookPath("yes")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	p := newPool(t, func(c *worker.Config) {
		if err := os.Symlink(c.Binary, program); err != nil {
			t.Fatal(err)
		}
		c.Binary = program
	})
	idle := mustCall(t, p, whoami)
	if err := errors.Join(os.Remove(program), os.Symlink(yes, program)); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Call(within(t, 50*time.Millisecond), p, once, 0); !errors.Is(err, worker.ErrNoWorker) {
		t.Errorf("got %v, want ErrNoWorker", err)
	}
	if pid := mustCall(t, p, whoami); pid != idle {
		t.Fatalf("process %d answers, and %d was idle", pid, idle)
	}
	before := p.Stats().Started
	var removed sync.WaitGroup
	removed.Go(func() {
		for p.Stats().Started == before {
			time.Sleep(time.Millisecond)
		}
		if err := os.Remove(program); err != nil { // the worker in the place of the spent one fails at once
			t.Error(err)
		}
	})
	defer removed.Wait()
	if pid, err := worker.CallWithin(within(t, time.Minute), 50*time.Millisecond, p, once, 0); pid != idle {
		t.Errorf("process %d answers (%v), and %d was idle", pid, err, idle)
	}
}

// A worker that comes back soon is waited for.
func TestCallWaitsForABusyWorker(t *testing.T) {
	p := newPool(t, func(c *worker.Config) { c.Grow = time.Minute })
	first := mustCall(t, p, whoami)
	fifo, write := newFIFO(t)
	var calls sync.WaitGroup
	calls.Go(func() {
		if _, err := worker.Call(within(t, time.Minute), p, listen, fifo); err != nil {
			t.Error(err)
		}
	})
	for p.Stats().Idle > 0 {
		time.Sleep(time.Millisecond)
	}
	calls.Go(func() {
		if pid, err := worker.Call(within(t, time.Minute), p, whoami, 0); pid != first {
			t.Errorf("process %d answers (%v), and %d was busy", pid, err, first)
		}
	})
	write()
	calls.Wait()
	if s := p.Stats(); s.Started != 1 {
		t.Errorf("%+v", s)
	}
}

// One that says something else is lost.
func TestWorkerThatTalksNonsense(t *testing.T) {
	for _, program := range []string{"true", "false"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		p := newPool(t, func(c *worker.Config) { c.Binary = path })
		if _, err := worker.Call(within(t, time.Minute), p, whoami, 0); !errors.Is(err, worker.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", program, err)
		}
		if s := p.Stats(); s.Living != 0 {
			t.Errorf("%s: %+v", program, s)
		}
	}
}
