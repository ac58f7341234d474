package worker_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
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

// showsWaits has a worker hang until it shows that it waits where it should: a thread that is held up
// elsewhere on a busy machine, as before it begins to wait, shows that.
func showsWaits(t *testing.T, p *worker.Pool, op operation.Op[string, int], path string, want error, is func(waits []string) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		mustCall(t, p, whoami) // so that a worker is there, and the time is for the operation alone
		_, err := worker.Call(within(t, 2*time.Second), p, op, path)
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		var stuck interface{ Ended() <-chan struct{} }
		if tells := errors.As(err, &stuck); tells != errors.Is(err, worker.ErrStuck) {
			t.Errorf("%v tells of its end: %v", err, tells)
		} else if tells {
			<-stuck.Ended()
		}
		waits := waitsOf(t, err)
		if is(waits) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v: it waits in %q", err, waits)
		}
	}
}

func TestHungWorkerShowsWhereItWaits(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root: only it may see where a process waits in the kernel")
	}
	fifo, _ := newFIFO(t)
	for want, killWait := range map[error]time.Duration{worker.ErrTimeout: time.Minute, worker.ErrStuck: time.Nanosecond} {
		p := newPool(t, func(c *worker.Config) { c.KillWait = killWait })
		showsWaits(t, p, listen, fifo, want, func(waits []string) bool {
			return slices.ContainsFunc(waits, func(f string) bool { return strings.Contains(f, "pipe_read") })
		})
	}
}

// A worker that waits in no system call of its operation shows nothing: what its
// other threads rest in is no evidence.
func TestHungWorkerThatWaitsForNothing(t *testing.T) {
	showsWaits(t, newPool(t), hang, "", worker.ErrTimeout, func(waits []string) bool { return waits == nil })
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
