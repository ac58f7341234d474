package node

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

type stuckWorker chan struct{}

func (stuckWorker) Error() string            { return "cannot be ended" }
func (s stuckWorker) Ended() <-chan struct{} { return s }

// begin begins a probe of a storage without a call.
func begin(t *testing.T, p *probes, m facts.Mount) *storageCall {
	t.Helper()
	at, first := p.join(storageOf(m), m)
	if !first {
		t.Fatalf("a call is at %+v", m)
	}
	return at
}

func busy(p *probes, m facts.Mount) bool {
	at, first := p.join(storageOf(m), m)
	if first {
		p.finish(storageOf(m), at, Inspection{}, nil)
	}
	return !first
}

func TestOneProbeAtAStorage(t *testing.T) {
	p := newProbes()
	m := facts.Mount{Dev: facts.Dev{Major: 8, Minor: 16}, FSType: "ext4", Path: "/a", Root: "/"}
	at := begin(t, p, m)
	if !busy(p, m) || !busy(p, facts.Mount{Dev: m.Dev, FSType: "ext4", Path: "/b", Root: "/sub"}) {
		t.Error("a second one at the same superblock")
	}
	if busy(p, facts.Mount{Dev: facts.Dev{Major: 8, Minor: 17}, FSType: "ext4"}) {
		t.Error("another superblock waits with it")
	}
	other, _ := p.join(storageOf(m), m)
	p.finish(storageOf(m), at, Inspection{ProbeFacts: facts.ProbeFacts{UUID: "u"}, Paths: map[string]facts.PathInfo{"/a": {}}}, nil)
	<-other.done
	if other.found.UUID != "u" || other.found.Paths != nil {
		t.Errorf("shared %+v", other.found)
	}
	if busy(p, m) {
		t.Error("it ended, and a call is at it")
	}
}

// A call that ends takes nothing away from the stuck worker of another one at its storage.
func TestEndOfACallBesideAStuckOne(t *testing.T) {
	p, s, stuck := newProbes(), storage{root: "nfs server a"}, make(stuckWorker)
	done(t, p.serialize(t.Context(), s, func() error {
		p.markStuck(s, Inspection{}, fmt.Errorf("inspect: %w", stuck))
		return nil
	}))
	if p.outstanding(s) == nil {
		t.Error("the stuck worker is forgotten")
	}
	close(stuck)
	if p.outstanding(s) != nil {
		t.Error("it has ended")
	}
}

func TestNoSecondProbeBesideAStuckOne(t *testing.T) {
	p := newProbes()
	m := facts.Mount{Dev: facts.Dev{Major: 0, Minor: 40}, FSType: "fuse.x", Path: "/a"}
	p.finish(storageOf(m), begin(t, p, m), Inspection{Answer: facts.Answer{Asked: true, TimedOut: true}}, errors.New("no answer, but ended"))
	if busy(p, m) {
		t.Error("an ended worker counts as stuck")
	}
	worker := make(stuckWorker)
	noAnswer := Inspection{Answer: facts.Answer{Asked: true, TimedOut: true, Stuck: true}}
	p.finish(storageOf(m), begin(t, p, m), noAnswer, fmt.Errorf("inspect: %w", worker))
	if busy(p, facts.Mount{Dev: facts.Dev{Major: 0, Minor: 41}, FSType: "fuse.x"}) {
		t.Error("another superblock waits with it")
	}
	for range 3 {
		at, first := p.join(storageOf(m), m)
		if first {
			t.Fatal("a second worker joins a stuck one")
		}
		<-at.done
		if !at.found.Answer.Stuck {
			t.Errorf("remembered as %+v", at.found)
		}
	}
	close(worker)
	if busy(p, m) {
		t.Error("stuck after the worker ended")
	}
}

// Device nodes share the superblock of devtmpfs, and are storages of their own.
func TestStuckDeviceKeepsNoOtherBack(t *testing.T) {
	for _, fs := range []string{"devtmpfs", "tmpfs"} { // a container's /dev is a tmpfs
		p := newProbes()
		node := facts.Mount{Dev: facts.Dev{Major: 0, Minor: 5}, FSType: fs, Root: "/sdb"}
		p.finish(storageOf(node), begin(t, p, node), Inspection{}, make(stuckWorker))
		other := node
		other.Root = "/sdc"
		if !busy(p, node) || busy(p, other) {
			t.Errorf("%s: sdb %v, sdc %v", fs, busy(p, node), busy(p, other))
		}
	}
}

func TestManyAtOneStorage(t *testing.T) {
	p := newProbes()
	var at, asked atomic.Int64
	var callers sync.WaitGroup
	m := facts.Mount{Dev: facts.Dev{Major: 8, Minor: 16}}
	for range 50 {
		callers.Go(func() {
			for range 100 {
				mine, first := p.join(storageOf(m), m)
				if !first {
					<-mine.done
					continue
				}
				if n := at.Add(1); n != 1 {
					t.Errorf("%d at once", n)
				}
				asked.Add(1)
				at.Add(-1)
				p.finish(storageOf(m), mine, Inspection{}, nil)
			}
		})
	}
	callers.Wait()
	if asked.Load() == 0 || busy(p, m) || len(p.calls) != 0 {
		t.Errorf("%d asked, %d are left", asked.Load(), len(p.calls))
	}
}

func TestLateInARow(t *testing.T) {
	p := newProbes()
	begin(t, p, facts.Mount{})
	a, b := facts.Mount{Dev: facts.Dev{Major: 8, Minor: 16}}, facts.Mount{Dev: facts.Dev{Major: 8, Minor: 32}}
	for i, step := range []struct {
		m    facts.Mount
		late bool
		want int
	}{
		{a, false, 0}, {a, true, 1}, {a, true, 2}, {b, true, 1}, {a, true, 3}, {a, false, 0}, {b, true, 2}, {a, true, 1},
	} {
		if got := p.late(step.m, step.late); got != step.want {
			t.Errorf("step %d: %d in a row, want %d", i, got, step.want)
		}
	}
	other := a
	other.Source = "other"
	if p.late(a, true); p.late(other, true) != 1 {
		t.Error("a filesystem that has the number of an earlier one is late from the start")
	}
	p.late(a, false)
	p.late(b, false)
	if p.slow.lru.Len() != 0 {
		t.Errorf("%d storages are kept", p.slow.lru.Len())
	}
}
