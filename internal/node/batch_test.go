package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// slowKill is longer than the others of a batch may be held up.
const slowKill = time.Second

// several returns a node that starts a worker for whoever finds none idle, with mounts of
// which each has answered promptly.
func several(t *testing.T, change ...func(*Config)) (n *Node, mounts []facts.Mount) {
	t.Helper()
	realKernel(t)
	pool := newPool(t, slowKill, func(c *worker.Config) { c.Max = 16 })
	n, root := newNode(t, append(change, func(c *Config) { c.Pool = pool })...)
	for i := range 6 {
		path := fmt.Sprintf("%s/%d", root, i)
		put(t, path)
		t.Cleanup(func() { done(t, unix.Unmount(path, 0)) })
		mounts = append(mounts, topAt(t, n, path))
	}
	allPrompt(t, n, mounts)
	return n, mounts
}

// allPrompt returns when each of them has answered promptly, as one on a busy machine may not have.
func allPrompt(t *testing.T, n *Node, mounts []facts.Mount) {
	t.Helper()
	eventually(t, "all answer promptly", func() bool {
		all := true
		for _, m := range mounts {
			done(t, routine(n, m).err)
			all = all && isPrompt(n, storageOf(m))
		}
		return all
	})
}

func isPrompt(n *Node, s storage) bool {
	last, _ := n.answered.get(s)
	return last == wasPrompt
}

type inspected struct {
	in   Inspection
	err  error
	took time.Duration
}

func routine(n *Node, m facts.Mount) (i inspected) {
	start := time.Now()
	i.in, i.err = n.Inspect(context.Background(), InspectQuery{Probe: &m, Paths: []PathQuery{{Path: m.Path, Mounted: true}}, Routine: true})
	i.took = time.Since(start)
	return i
}

func sideBySide(n *Node, mounts []facts.Mount) []inspected {
	found := make([]inspected, len(mounts))
	var all sync.WaitGroup
	for i, m := range mounts {
		all.Go(func() { found[i] = routine(n, m) })
	}
	all.Wait()
	return found
}

func TestOneWorkerForSeveral(t *testing.T) {
	n, mounts := several(t)
	// A machine that is busy at that moment starts some too late to join the others.
	eventually(t, "no worker is started for several volumes", func() bool {
		allPrompt(t, n, mounts)
		before := n.cfg.Pool.Stats().Started
		for i, f := range sideBySide(n, mounts) {
			if f.err != nil || f.in.Answer.Errno != 0 || f.in.Kind != facts.KindDirectory || f.in.Changed || !f.in.Paths[mounts[i].Path].Inspected {
				t.Errorf("%+v, %v", f.in, f.err)
			}
		}
		return n.cfg.Pool.Stats().Started == before
	})
}

// One that hangs does not make the checks of the others slow ones, however long its worker
// takes to end.
func TestOneThatHangsHoldsUpNoOther(t *testing.T) {
	n, mounts := several(t, func(c *Config) { c.ProbeTimeout = 12 * time.Second })
	path := n.kubelet.Root + "/hung"
	eventually(t, "the others are held up for less than half of its time", func() bool {
		allPrompt(t, n, mounts)
		end := hang(t, path)
		defer func() { end(); done(t, os.Remove(path)) }()
		hung := topAt(t, n, path)
		n.answered.add(storageOf(hung), wasPrompt) // as if it had answered before
		found := sideBySide(n, append(mounts, hung))
		soon := true
		for _, f := range found[:len(mounts)] {
			if f.err != nil || f.in.Answer.TimedOut {
				t.Errorf("beside it, after %s: %+v, %v", f.took, f.in.Answer, f.err)
			}
			soon = soon && f.took < n.cfg.ProbeTimeout/2
		}
		if h := found[len(mounts)]; h.err != nil || !h.in.Answer.TimedOut {
			t.Errorf("it: %+v, %v", h.in.Answer, h.err)
		}
		return soon
	})
}

// One that answers late among others is not asked with them again, and they are.
func TestOneOfSeveralIsLate(t *testing.T) {
	n, mounts := several(t)
	path := n.kubelet.Root + "/late"
	fuseVolume(t, path, func() bool { time.Sleep(100 * time.Millisecond); return true })
	late := storageOf(topAt(t, n, path))
	eventually(t, "only the late one is no longer prompt", func() bool {
		n.answered.add(late, wasPrompt) // as if it had been before
		for _, m := range mounts {
			if !isPrompt(n, storageOf(m)) {
				routine(n, m) // on a busy machine it may have been late itself
				return false
			}
		}
		sideBySide(n, append(mounts, topAt(t, n, path)))
		if isPrompt(n, late) {
			t.Fatal("it counts as prompt")
		}
		return !slices.ContainsFunc(mounts, func(m facts.Mount) bool { return !isPrompt(n, storageOf(m)) })
	})
}

// One that hangs among others is found, leaves them their answers, and costs one worker
// for all and one for itself, as long as it hangs.
func TestOneOfSeveralHangs(t *testing.T) {
	n, mounts := several(t, func(c *Config) { c.ProbeTimeout = 8 * time.Second })
	root := n.kubelet.Root
	hang(t, root+"/hung")
	hung := topAt(t, n, root+"/hung")
	n.answered.add(storageOf(hung), wasPrompt) // as if it had answered before
	for round := range 2 {
		found := sideBySide(n, append(mounts, hung))
		for _, f := range found[:len(mounts)] {
			if f.err != nil || !f.in.Answer.Asked || f.in.Answer.TimedOut || f.in.Answer.Errno != 0 {
				t.Errorf("beside it: %+v, %v", f.in.Answer, f.err)
			}
		}
		if h := found[len(mounts)]; h.err != nil || !h.in.Answer.TimedOut || !h.in.Answer.Stuck {
			t.Errorf("it: %+v, %v", h.in.Answer, h.err)
		}
		if round == 0 && isPrompt(n, storageOf(hung)) {
			t.Error("it counts as prompt")
		}
		// On a busy machine one that was killed may take longer to end than it has.
		eventually(t, "at most two workers wait", func() bool { return n.cfg.Pool.Stats().Abandoned <= 2 })
		n.answered.add(storageOf(hung), wasPrompt) // it answers whoever asks it alone
	}
}
