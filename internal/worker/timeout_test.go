package worker_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
)

// waitsOf returns what an error tells of where its worker waited.
func waitsOf(t *testing.T, err error) []string {
	t.Helper()
	var hung interface{ Waits() []string }
	if !errors.As(err, &hung) {
		t.Fatalf("the error does not tell where the worker waited: %v", err)
	}
	return hung.Waits()
}

// emptyFIFO is one in which nobody ever writes.
func emptyFIFO(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root: only it may see where a process waits in the kernel")
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	return fifo
}

func TestHungWorkerShowsWhereItWaits(t *testing.T) {
	fifo := emptyFIFO(t)
	for want, killWait := range map[error]time.Duration{worker.ErrTimeout: time.Minute, worker.ErrStuck: time.Nanosecond} {
		p := newPool(t, func(c *worker.Config) { c.KillWait = killWait })
		mustCall(t, p, whoami) // so that a worker is there, and the time is for the operation alone
		_, err := worker.Call(within(t, 2*time.Second), p, listen, fifo)
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		if waits := waitsOf(t, err); !slices.ContainsFunc(waits, func(f string) bool { return strings.Contains(f, "pipe_read") }) {
			t.Errorf("%v: it waits in %q", want, waits)
		}
		var stuck interface{ Ended() <-chan struct{} }
		if is := errors.As(err, &stuck); is != errors.Is(err, worker.ErrStuck) {
			t.Errorf("%v tells of its end: %v", err, is)
		} else if is {
			<-stuck.Ended()
		}
	}
}

// A worker that waits in no system call of its operation shows nothing: what its
// other threads rest in is no evidence.
func TestHungWorkerThatWaitsForNothing(t *testing.T) {
	p := newPool(t)
	mustCall(t, p, whoami)
	_, err := worker.Call(within(t, 2*time.Second), p, hang, "")
	if !errors.Is(err, worker.ErrTimeout) {
		t.Fatal(err)
	}
	if waits := waitsOf(t, err); waits != nil {
		t.Errorf("it waits in %q", waits)
	}
}

func TestLostWorkerWaitsNowhere(t *testing.T) {
	p := newPool(t)
	_, err := worker.Call(within(t, time.Minute), p, leave, 0)
	if !errors.Is(err, worker.ErrLost) || errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck) {
		t.Fatalf("got %v, want ErrLost", err)
	}
	if waits := waitsOf(t, err); waits != nil {
		t.Errorf("it waits in %q", waits)
	}
	mustCall(t, p, whoami)
}
