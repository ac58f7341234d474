package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

func onServer(source string) facts.Mount {
	return facts.Mount{Dev: facts.Dev{Major: 0, Minor: uint32(len(source))}, FSType: "nfs4", Source: source}
}

func TestServerOf(t *testing.T) {
	for source, want := range map[string]string{
		"srv:/a": "srv", "srv:/": "srv", "10.0.0.1:/a:/b": "10.0.0.1", "[fd00::1]:/a": "[fd00::1]", "odd": "",
	} {
		if got, is := serverOf(onServer(source)); !is || got.root != "nfs server "+want {
			t.Errorf("%s: %q %v", source, got.root, is)
		}
	}
	if _, is := serverOf(facts.Mount{FSType: "ext4", Source: "/dev/sda"}); is {
		t.Error("a disk has a server")
	}
}

// While a server does not answer one worker at a time asks it; once it answers, all may.
func TestOneAtAServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{cfg: Config{ProbeTimeout: time.Second}, probes: newProbes(), answered: newCache[storage, manner]()}
		var mu sync.Mutex
		active, most := 0, 0
		ask := func(err error) func() error {
			return func() error {
				mu.Lock()
				active++
				most = max(most, active)
				mu.Unlock()
				time.Sleep(n.cfg.ProbeTimeout)
				mu.Lock()
				active--
				mu.Unlock()
				return err
			}
		}
		all := func(count int, err error) (errs []error) {
			most = 0
			errs = make([]error, count)
			var wg sync.WaitGroup
			for i := range count {
				wg.Go(func() { errs[i] = n.atServer(t.Context(), onServer(fmt.Sprintf("srv:/%0*d", i+1, i)), ask(err)) })
			}
			wg.Wait()
			return errs
		}
		hung := fmt.Errorf("hm: %w", worker.ErrTimeout)
		all(3, hung)
		if most != 3 {
			t.Errorf("%d at a server of which nothing is known", most)
		}
		start := time.Now()
		for _, err := range all(20, hung) {
			if !errors.Is(err, worker.ErrTimeout) {
				t.Errorf("got %v", err)
			}
		}
		if most != 1 {
			t.Errorf("%d workers at a server that does not answer", most)
		}
		if waited := time.Since(start); waited > 6*n.cfg.ProbeTimeout {
			t.Errorf("the last one heard of it after %s", waited)
		}
		if err := n.atServer(t.Context(), onServer("srv:/a"), ask(nil)); err != nil {
			t.Error(err)
		}
		if all(3, nil); most != 3 {
			t.Errorf("%d at a server that answers again", most)
		}
	})
}

// A worker that cannot be ended keeps others from its server, not from another one.
func TestStuckAtAServer(t *testing.T) {
	n := &Node{cfg: Config{ProbeTimeout: time.Second}, probes: newProbes(), answered: newCache[storage, manner]()}
	ended := make(stuckWorker)
	stuck := errors.Join(ended, worker.ErrStuck)
	if err := n.atServer(context.Background(), onServer("srv:/a"), func() error { return stuckError{stuck, ended} }); !errors.Is(err, worker.ErrStuck) {
		t.Errorf("got %v", err)
	}
	asked := false
	ask := func() error { asked = true; return nil }
	if err := n.atServer(context.Background(), onServer("srv:/bb"), ask); !errors.Is(err, worker.ErrStuck) || asked {
		t.Errorf("got %v, asked: %v", err, asked)
	}
	if err := n.atServer(context.Background(), onServer("other:/b"), ask); err != nil || !asked {
		t.Errorf("got %v, asked: %v", err, asked)
	}
	asked = false
	port := onServer("srv:/a")
	port.SuperOptions = []string{"rw", "proto=tcp", "port=20236"}
	if err := n.atServer(context.Background(), port, ask); err != nil || !asked {
		t.Errorf("at another port: %v, asked: %v", err, asked)
	}
	close(ended)
	asked = false
	if err := n.atServer(context.Background(), onServer("srv:/bb"), ask); err != nil || !asked {
		t.Errorf("after it ended: %v, asked: %v", err, asked)
	}
}

type stuckError struct {
	error
	stuckWorker
}

func (e stuckError) Error() string { return e.error.Error() }
func (e stuckError) Unwrap() error { return e.error }

// Two mounts of an export look alike in the mount table, and one may be stale alone.
func TestSameViewOnNFS(t *testing.T) {
	a := onServer("srv:/a")
	a.OldID, a.Root, a.Path = 1, "/", "/a"
	b := a
	b.OldID = 2
	if sameView(a, b) || !sameView(a, a) {
		t.Error("two mounts of an export share an answer, or the same one does not")
	}
	a.FSType, b.FSType = "ext4", "ext4"
	if !sameView(a, b) {
		t.Error("two mounts of a disk do not share an answer")
	}
}
