package integration

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestDiesAgainWhileReplacing has the new daemon die in the middle of a
// replacement, and the driver stage once more: the next call has it healed.
func TestDiesAgainWhileReplacing(t *testing.T) {
	for _, instant := range replaceTurns {
		t.Run(instant, func(t *testing.T) {
			h, s := stopReplace(t, instant)
			s.die()
			h.Resume()
			if a := h.LetGo(); a == nil {
				t.Error(h.Err())
			}
			h.again()
			s.back()
			h.n.Expect("healthy", s.Request())
		})
	}
}

// TestStagedDiesWhileReplacing has the new daemon die at every instant, for which
// there is no other one yet: the mount point is as dead as before, and healed as soon as
// there is one.
func TestStagedDiesWhileReplacing(t *testing.T) {
	for _, instant := range []string{"replace/cloned", "replace/beneath", "replace/detached", "finalize", "finalize/set"} {
		t.Run(instant, func(t *testing.T) {
			h, s := stopReplace(t, instant)
			s.disk.Kill()
			h.Resume()
			if a := h.LetGo(); a == nil || !a.GetAbnormal() {
				t.Errorf("got %v, %v", a, h.Err())
			}
			s.disk.Restage()
			h.again()
			s.back()
			h.n.Expect("healthy", s.Request())
		})
	}
}

// TestUnpublishStorm ends a pod, and has a driver unpublish, at any moment of a
// call that heals: as kubelet does, which unpublishes when the containers are
// gone.
func TestUnpublishStorm(t *testing.T) {
	harness.NeedsFull(t)
	n := harness.NewNode(t).Start()
	s := newServed(n, "in a storm").known()
	const rounds = 6
	for range rounds {
		for name, unpublish := range unpublishers {
			c := n.NewContainer(harness.PodUID, s.MountPoint())
			n.Expect("healthy", s.Request())
			s.die()
			call := n.Begin(s.Request())
			time.Sleep(rand.N(40 * time.Millisecond)) // at any moment of it
			c.Kill()
			first := unpublish(s.MountPoint())
			call.Answer()
			if s.Sum(s.disk.Backing) != s.sum {
				t.Fatalf("the volume lost data; the driver (%s) got %v", name, first)
			}
			harness.Eventually(t, "kubelet's next tries succeed", func() bool { return unpublish(s.MountPoint()) == nil })
			if s.Sum(s.disk.Backing) != s.sum {
				t.Fatalf("the volume lost data; the driver (%s) got %v", name, first)
			}
			s.Publish(harness.PodUID)
		}
	}
}
