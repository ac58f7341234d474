package integration

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// stopInContainer kills the daemon behind a volume that a container uses, calls, and
// waits for a worker to stop at one of the given instants in the container.
func stopInContainer(t *testing.T, instants string, options ...string) (halfway, *used) {
	t.Helper()
	n := harness.NewNode(t)
	n.Pause = instants
	return stopInContainerOn(n.Start(), options...)
}

// stopInContainerOn is stopInContainer on a node whose server runs.
func stopInContainerOn(n *harness.Node, options ...string) (halfway, *used) {
	n.T.Helper()
	u := newUsed(n, options...)
	u.die()
	h := halfway{t: n.T, n: n, v: u.Volume, healthy: u.disk.Renumbered(u.healthy)}
	h.Begun = n.BeginAndStop(u.Request())
	return h, u
}

// killInContainer is kill for a worker that may have been lost before it changed anything:
// then there is no answer.
func (h halfway) killInContainer(victim string) {
	h.t.Helper()
	if victim == "server" {
		h.kill(victim)
		return
	}
	h.KillWorker()
	_ = h.Err()
	h.n.Stop()
	h.restart()
	if a, err := h.n.Call(h.v.Request()); err != nil || a.GetAbnormal() {
		h.t.Fatalf("the next call does not heal: %v %v", a, err)
	}
}

// TestKillInContainer kills the worker or the server at every instant of a replacement
// in a container. After one more call all is as before, without a mount too many or
// too few.
func TestKillInContainer(t *testing.T) {
	for victim, instants := range map[string][]string{"worker": threeOf(inContainerInstants), "server": inContainerInstants} {
		for _, instant := range instants {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				h, u := stopInContainer(t, instant)
				h.killInContainer(victim)
				u.works()
				h.n.Expect("healthy", u.Request())
			})
		}
	}
}

// TestKillInContainerShared is the same for mounts that propagate, which is the harder
// case, and for a read-only one.
func TestKillInContainerShared(t *testing.T) {
	for i, options := range [][]string{{"rslave"}, {"rshared"}, {"ro"}} {
		for j, instant := range []string{"replace-in-container/beneath", "replace-in-container/detached", "replace-in-container/finalized"} {
			if !inTurn(i, j, 3) {
				continue
			}
			t.Run(options[0]+" at "+instant, func(t *testing.T) {
				h, u := stopInContainer(t, instant, options...)
				h.killInContainer("server")
				u.works()
				h.n.Expect("healthy", u.Request())
			})
		}
	}
}

// TestKillInContainerNested kills while mounts inside the volume are being copied:
// none is lost.
func TestKillInContainerNested(t *testing.T) {
	for _, instant := range threeOf(inContainerInstants) {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t)
			n.Pause = instant
			n.Start()
			u := newNested(n, longEnough, nil)
			u.die()
			h := halfway{t: t, n: n, v: u.Volume, Begun: n.BeginAndStop(u.Request())}
			h.killInContainer("server")
			u.c.SameTable(u.table)
			if out, err := u.c.Exec("cat", "/data/a", "/data/sub/kept"); err != nil || !strings.HasSuffix(out, "firstkept\n") {
				t.Errorf("the container has %q, %v", out, err)
			}
			n.Expect("healthy", u.Request())
		})
	}
}

// TestInContainerOfAnEndingContainer ends a container at every instant of the work in
// it. Nothing else is harmed, and the rest of the work is done.
func TestInContainerOfAnEndingContainer(t *testing.T) {
	for _, instant := range threeOf(inContainerInstants) {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t)
			n.Pause = instant
			n.Start()
			s := newServed(n, "ends in between")
			spec := harness.ContainerSpec{Name: "ends", Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}}
			ending := s.usedBy(spec)
			spec.Name = "goes on"
			u := s.usedBy(spec)
			u.die()
			call := n.BeginAndStop(u.Request())
			ending.c.Kill()
			if a := call.LetGo(); a == nil {
				t.Fatalf("a container that ends is no error of the question: %v", call.Err())
			}
			if a := n.Begin(u.Request()).LetGo(); a == nil || a.GetAbnormal() {
				t.Errorf("the next call got %v", a)
			}
			u.works()
		})
	}
}

// TestInContainerMountedOver has something mounted over the volume in the container at
// every instant of the work there. It stays.
func TestInContainerMountedOver(t *testing.T) {
	for _, instant := range threeOf(inContainerInstants) {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t)
			n.Pause = instant
			n.Start()
			s := newServed(n, "mounted over")
			c := n.StartContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
			s.known()
			table := c.Table()
			s.die()
			call := n.BeginAndStop(s.Request())
			c.InMounts(func() error { return unix.Mount("over", "/data", "tmpfs", 0, "") })
			call.LetGo()
			over := func() {
				t.Helper()
				if !slices.ContainsFunc(c.Table(), func(line string) bool {
					return strings.HasPrefix(line, "/data ") && strings.Contains(line, " tmpfs over ")
				}) {
					t.Errorf("what was mounted over the volume is gone: %q", c.Table())
				}
			}
			over()
			n.Begin(s.Request()).LetGo()
			over()
			c.InMounts(func() error { return unix.Unmount("/data", 0) })
			if a := n.Begin(s.Request()).LetGo(); a == nil || a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
			c.SameTable(table)
			if got := c.MountsAt("/data"); got[0].Dev != s.disk.Dev() {
				t.Errorf("the container has %v", got)
			}
		})
	}
}
