package integration

import (
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// coverInstants are where a worker can be stopped while it covers a dead mount.
var coverInstants = []string{
	"cover/cloned", "cover/checked", "cover/private", "cover/verified", "finalize/checked", "finalize/alone",
	"finalize/set", "finalize/copies", "unmark/checked", "unmark/alone", "unmark/set",
}

// withoutBeneath has this kernel healed as one that cannot put a mount beneath
// another; where it is one, nothing changes.
func withoutBeneath(t *testing.T) {
	t.Helper()
	t.Setenv(coversDead, "yes")
}

// coversDead is the environment variable of test builds that has them cover what is
// dead. Tests that do not set it are about a kernel that can replace it.
const coversDead = "NODE_HEALER_WITHOUT_BENEATH"

// covered fails the test unless the volume works at its mount point, on top of so many
// dead mounts, and nothing else has changed.
func (s *served) covered(dead int) {
	t := s.Node.T
	t.Helper()
	stack := harness.Layers(t, s.MountPoint())
	slices.Reverse(stack)
	if len(stack) != dead+1 || stack[0].Dev != s.disk.Dev() {
		t.Fatalf("the mount point has %v", stack)
	}
	if stack[0].Propagation.Shared == 0 {
		t.Errorf("it no longer shares its events: %v", stack[0])
	}
	for _, m := range stack[1:] {
		if m.Dev == s.disk.Dev() || m.Propagation != (facts.Propagation{}) {
			t.Errorf("beneath it is %v", m)
		}
	}
	for _, at := range []string{s.MountPoint(), s.Staging, s.disk.Backing} {
		if s.Sum(at) != s.sum {
			t.Errorf("the data at %s differs", at)
		}
	}
	if staged := harness.Layers(t, s.Staging); len(staged) != 1 {
		t.Errorf("the staging path has %v", staged)
	}
	s.Writable(s.MountPoint())
}

// TestCover heals a dead FUSE volume twice where the kernel can only mount over it,
// and then reports it as healthy.
func TestCover(t *testing.T) {
	withoutBeneath(t)
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	s := newServed(n, "covered").known()
	for deaths := range 2 {
		s.die()
		n.Expect("healed", s.Request(), "Disconnected", "cover")
		s.covered(deaths + 1)
		n.Expect("healthy", s.Request())
		next.untouched()
		n.Kill()
		n.Start()
		n.Expect("healthy", s.Request())
	}
}

// TestCoverEndsSomewhere leaves a mount point alone that has as many dead mounts as a
// driver's umount tries, and says what helps.
func TestCoverEndsSomewhere(t *testing.T) {
	withoutBeneath(t)
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "covered again and again").known()
	for range 3 {
		s.die()
		n.Expect("healed", s.Request(), "cover")
	}
	s.die()
	n.Expect("abnormal", s.Request(), "Disconnected", "delete the pod")
}

// TestCoverOnlyWhatIsGone covers no mount that may answer again.
func TestCoverOnlyWhatIsGone(t *testing.T) {
	withoutBeneath(t)
	h := harness.NewNode(t, "--standalone").Start()
	s := newServed(h, "hung").known()
	s.disk.Freeze()
	defer s.disk.Thaw()
	before := h.Table()
	h.Expect("abnormal", s.Request(), "NotResponding")
	h.SameTable(before)
}

// stopCover is stopReplace for a kernel that covers.
func stopCover(t *testing.T, instant string) (halfway, *served) {
	t.Helper()
	withoutBeneath(t)
	return stopReplace(t, instant)
}

// TestKillCovering kills worker and server at every instant. After one more call the
// mount point is covered once, by a writable mount.
func TestKillCovering(t *testing.T) {
	ofWorker := threeOf(coverInstants)
	for _, instant := range coverInstants {
		for victim, kill := range map[string]func(halfway){
			"server": func(h halfway) { h.kill("server") },
			"worker": func(h halfway) {
				h.KillWorker()
				if a := h.LetGo(); a == nil {
					t.Fatal("a lost worker is no error of the question")
				}
				h.again()
			},
		} {
			if victim == "worker" && !slices.Contains(ofWorker, instant) {
				continue
			}
			t.Run(victim+" at "+instant, func(t *testing.T) {
				h, s := stopCover(t, instant)
				kill(h)
				s.covered(1)
				h.n.Expect("healthy", s.Request())
			})
		}
	}
}

// TestUnpublishWhileCovering has a driver unpublish the mount point at every instant, and
// after the last one: no data is lost, and its next tries succeed.
func TestUnpublishWhileCovering(t *testing.T) {
	unpublishAt(t, coverInstants, func(t *testing.T, instant string, unpublish func(target string) error) {
		h, s := stopCover(t, instant)
		h.unpublished(unpublish, s.disk.Backing)
	})
	for name, unpublish := range unpublishers {
		t.Run(name+" afterwards", func(t *testing.T) {
			withoutBeneath(t)
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "unpublished").known()
			s.die()
			n.Expect("healed", s.Request(), "cover")
			first := unpublish(s.MountPoint())
			harness.Eventually(t, "the next tries succeed", func() bool { return unpublish(s.MountPoint()) == nil })
			if s.Sum(s.disk.Backing) != s.sum {
				t.Errorf("the volume lost data; the driver got %v", first)
			}
		})
	}
}

// TestCoverInContainer heals the mount of a running container, whatever its
// propagation; the same process goes on reading.
func TestCoverInContainer(t *testing.T) {
	for _, option := range []string{"", "ro", "rslave", "rshared"} {
		t.Run("option "+option, func(t *testing.T) {
			withoutBeneath(t)
			n := harness.NewNode(t).Start()
			u := newUsed(n, slices.DeleteFunc([]string{option}, func(o string) bool { return o == "" })...)
			for range 2 {
				u.die()
				n.Expect("healed", u.Request(), "cover", "replace-in-container")
				if got := u.c.AwaitTurns(); got.Reads != got.Turns {
					t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
				}
				u.onlyDead()
				n.Expect("healthy", u.Request())
			}
			if u.c.Starts() != 1 {
				t.Errorf("the loop was started %d times", u.c.Starts())
			}
		})
	}
}

// TestKillCoverInContainer kills the server at every instant of the work in a container.
func TestKillCoverInContainer(t *testing.T) {
	for _, instant := range []string{"replace-in-container/entered", "replace-in-container/checked", "replace-in-container/verified", "replace-in-container/finalized"} {
		t.Run(instant, func(t *testing.T) {
			withoutBeneath(t)
			h, u := stopInContainer(t, instant)
			h.killInContainer("server")
			if got := u.c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
				t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
			}
			h.n.Expect("healthy", u.Request())
		})
	}
}
