package worker_test

import (
	"context"
	"errors"
	"os/exec"
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
