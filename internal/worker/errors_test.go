package worker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/worker"
)

func TestErrorsCrossTheBoundary(t *testing.T) {
	p := newPool(t)
	pid := mustCall(t, p, whoami)
	for how, want := range map[string]struct {
		text   string
		leaves []error
	}{
		"errno":   {"open /x: stale", []error{unix.ESTALE}},
		"refused": {"refused: not ours", []error{operation.ErrRefused}},
		"both":    {"taking it off", []error{operation.ErrRefused, unix.EBUSY}},
		"plain":   {"plain", nil},
	} {
		_, err := worker.Call(within(t, time.Minute), p, fail, how)
		if err == nil || !strings.HasPrefix(err.Error(), "fail: ") || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", how, err)
		}
		for _, leaf := range []error{unix.ESTALE, unix.EBUSY, operation.ErrRefused, worker.ErrLost} {
			if got, has := errors.Is(err, leaf), contains(want.leaves, leaf); got != has {
				t.Errorf("%s: errors.Is(%v) is %v", how, leaf, got)
			}
		}
	}
	if again := mustCall(t, p, whoami); again != pid {
		t.Error("an error of an operation cost its worker")
	}
}

func contains(errs []error, want error) bool {
	for _, err := range errs {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

func TestWorkerThatExitsIsLost(t *testing.T) {
	p := newPool(t)
	for _, code := range []int{0, 1} {
		pid := mustCall(t, p, whoami)
		if _, err := worker.Call(within(t, time.Minute), p, leave, code); !errors.Is(err, worker.ErrLost) {
			t.Errorf("exit %d: got %v, want ErrLost", code, err)
		}
		if !gone(pid) {
			t.Errorf("process %d was not reaped", pid)
		}
	}
	mustCall(t, p, whoami)
}

func TestWorkerProgramThatDoesNotServe(t *testing.T) {
	for name, binary := range map[string]string{"missing": "/nonexistent/worker", "another program": "/bin/true"} {
		p := newPool(t, func(c *worker.Config) { c.Binary = binary })
		if _, err := worker.Call(within(t, time.Minute), p, whoami, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
		if s := p.Stats(); s.Living != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestUnknownOperation(t *testing.T) {
	p := newPool(t)
	unknown := operation.Define("unknown", operation.Pooled, pidAfter)
	if _, err := worker.Call(within(t, time.Minute), p, unknown, 0); !errors.Is(err, worker.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	mustCall(t, p, whoami)
}

func TestServeRefusesTwoOfOneName(t *testing.T) {
	if err := operation.Serve(whoami, whoami); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got %v", err)
	}
}
