package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// hoard is where an attacker mounts, in a filesystem of its own; no message may
// name it.
const hoard = "/tmp/hoard"

// evil is what an attacker calls what must not appear anywhere else.
const evil = "evil"

// hoarded returns the path of one of the attacker's binds.
func hoarded(i int) string { return fmt.Sprint(hoard, "/", i) }

// attackIn starts an attacker in a container, with a directory to mount in.
func attackIn(c *harness.Container) *harness.Attacker {
	a := c.NewAttacker()
	a.Mount("tmpfs", "/tmp", "tmpfs", 0)
	a.Do("mkdir", hoard)
	return a
}

// bindMany binds what the container has, as often as asked for.
func bindMany(a *harness.Attacker, times int) {
	for i := range times {
		a.Do("mkdir", hoarded(i))
		a.Mount("/data", hoarded(i), "", unix.MS_BIND)
	}
}

const (
	// tooMany is more than are inspected in one namespace.
	tooMany = 71
	// kept is how many get a peer group: one of them that of the host's old mount,
	// as the kernel gives the lowest free number.
	kept = 19
)

// share unmounts all but a few of the attacker's binds, and gives each of these a
// peer group.
func share(a *harness.Attacker) {
	for i := kept; i < tooMany; i++ {
		a.Unmount(hoarded(i))
	}
	for i := range kept {
		a.Mount("", hoarded(i), "", unix.MS_SHARED)
	}
}

// cover mounts something else in each of the attacker's binds, and over it. A dead
// one takes nothing.
func cover(a *harness.Attacker) {
	for i := range kept {
		_ = a.Try(0, "mount", evil, hoarded(i)+"/sub", "tmpfs")
		_ = a.Try(0, "mount", evil, hoarded(i), "tmpfs")
	}
}

// release takes all off that the attacker has.
func release(a *harness.Attacker) {
	for i := range tooMany {
		for range 2 { // what covers it, and itself
			_ = a.Try(unix.MNT_DETACH, "umount", hoarded(i))
		}
	}
}

// noEvil fails the test when the host has a mount of an attacker's.
func noEvil(t *testing.T) {
	t.Helper()
	for _, m := range harness.Mounts(t, "self") {
		if m.Source == evil {
			t.Errorf("the attacker's mount appeared on the host at %s", m.Path)
		}
	}
}

// unnamed asks for a volume, and fails the test when the verdict is not as it would
// be without an attacker, or names what the attacker has.
func unnamed(n *harness.Node, verdict string, v *harness.Volume) {
	n.T.Helper()
	if message := says(n, verdict, v); strings.Contains(message, hoard) {
		n.T.Errorf("the message names what the attacker has: %q", message)
	}
}

// says asks for a volume, returns the message, and fails the test when it has another
// verdict or lacks something. The test goes on: it is to show what came of it.
func says(n *harness.Node, verdict string, v *harness.Volume, has ...string) string {
	n.T.Helper()
	a, err := n.Call(v.Request())
	message := a.GetMessage()
	if err != nil || !strings.HasPrefix(message, verdict+":") {
		n.T.Errorf("want %s, got %q %v", verdict, message, err)
	}
	for _, h := range has {
		if !strings.Contains(message, h) {
			n.T.Errorf("the message lacks %q: %q", h, message)
		}
	}
	return message
}

// sameMounts fails the test when a mount in a namespace is not as it was: the same
// one, with the attributes and the peers that it had.
func sameMounts(t *testing.T, before, after []facts.Mount) {
	t.Helper()
	lines := func(mounts []facts.Mount) (all []string) {
		for _, m := range mounts {
			all = append(all, fmt.Sprintf("%d %s on %q %s %s %+v", m.OldID, m.Dev, m.Path, m.Root, m.Attr, m.Propagation))
		}
		return all
	}
	was, is := lines(before), lines(after)
	gone := slices.DeleteFunc(slices.Clone(was), func(line string) bool { return slices.Contains(is, line) })
	come := slices.DeleteFunc(slices.Clone(is), func(line string) bool { return slices.Contains(was, line) })
	if len(gone)+len(come) > 0 {
		t.Errorf("%d mounts have changed or are gone, as %q; %d are new, as %q", len(gone), gone[:min(len(gone), 1)], len(come), come[:min(len(come), 1)])
	}
}

// reads fails the test unless the container's process has its data.
func (u *used) reads() {
	u.Node.T.Helper()
	if got := u.c.AwaitTurns(); got.Reads != got.Turns {
		u.Node.T.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
	}
}

// unpublishOnce does what drivers do that unmount once and then delete what they
// find: the data of the volume must survive it.
func (s *served) unpublishOnce() {
	s.Node.T.Helper()
	if err := unix.Unmount(s.MountPoint(), 0); err != nil {
		s.Node.T.Errorf("a driver's umount: %v", err)
	}
	if err := os.RemoveAll(s.MountPoint()); err != nil {
		s.Node.T.Errorf("a driver's RemoveAll: %v", err)
	}
	if s.Sum(s.disk.Backing) != s.sum {
		s.Node.T.Error("the volume lost data")
	}
}

// attacked is a volume in a container with an attacker.
type attacked struct {
	*used
	a *harness.Attacker
}

func newAttacked(n *harness.Node, propagation string) attacked {
	n.T.Helper()
	s := newServed(n, "in use inside")
	u := s.usedBy(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint(), Options: []string{propagation}}},
		Loop:   &harness.Loop{Read: "/data/a", Write: "/loop/written"},
	})
	return attacked{u, attackIn(u.c)}
}

// attack has the host's mount replaced, and the attacker get its peer group's
// number before the next call.
func (v attacked) attack(t *testing.T) {
	t.Helper()
	bindMany(v.a, tooMany)
	unnamed(v.Node, "healthy", v.Volume)
	v.die()
	before := v.a.Mounts()
	unnamed(v.Node, "healed", v.Volume)
	sameMounts(t, before, v.a.Mounts())
	share(v.a)
	before = v.a.Mounts()
	unnamed(v.Node, "healthy", v.Volume)
	sameMounts(t, before, v.a.Mounts())
	cover(v.a)
	noEvil(t)
}

// TestAttackWithPeerGroups has an attacker get the number of the peer group that
// the host's mount had before it was replaced. Its mounts do not become peers of
// the host's, and change no verdict.
func TestAttackWithPeerGroups(t *testing.T) {
	for _, propagation := range []string{"rprivate", "rslave", "rshared"} {
		t.Run(propagation, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			next := newNeighbour(n)
			v := newAttacked(n, propagation)
			for range 2 {
				v.attack(t)
				unnamed(n, "healthy", v.Volume)
				noEvil(t)
				v.reads()
				next.untouched()
				release(v.a)
			}
		})
	}
}

// TestAttackWithPeerGroupsOnData has a driver unpublish a volume after that attack:
// its data stays.
func TestAttackWithPeerGroupsOnData(t *testing.T) {
	n := harness.NewNode(t).Start()
	v := newAttacked(n, "rprivate")
	v.attack(t)
	v.unpublishOnce()
}

// TestAttackWithPeerGroupsAllTheTime repeats the attack continuously while the volume
// is healed again and again in containers of every kind.
func TestAttackWithPeerGroupsAllTheTime(t *testing.T) {
	n := harness.NewNode(t).Start()
	next := newNeighbour(n)
	s := newServed(n, "in use inside")
	var all []*used
	for _, propagation := range []string{"rprivate", "rslave", "rshared"} {
		all = append(all, s.usedBy(harness.ContainerSpec{
			Name:   propagation,
			Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint(), Options: []string{propagation}}},
			Loop:   &harness.Loop{Read: "/data/a", Write: "/loop/written"},
		}))
	}
	a := attackIn(all[0].c)
	enough := make(chan struct{})
	var gone sync.WaitGroup
	stop := sync.OnceFunc(func() { close(enough); gone.Wait() })
	t.Cleanup(stop)
	going := func() bool {
		select {
		case <-enough:
			return false
		default:
			return true
		}
	}
	gone.Go(func() {
		for going() {
			for i := range tooMany {
				_ = a.Try(0, "mkdir", hoarded(i))
				_ = a.Try(unix.MS_BIND, "mount", "/data", hoarded(i))
			}
			for i := kept; i < tooMany; i++ {
				_ = a.Try(unix.MNT_DETACH, "umount", hoarded(i))
			}
			for i := range kept {
				_ = a.Try(unix.MS_SHARED, "mount", "", hoarded(i))
			}
			cover(a)
			release(a)
		}
	})
	gone.Go(func() {
		for going() {
			noEvil(t)
		}
	})
	for range 6 {
		s.die()
		unnamed(n, "healed", s.Volume)
		unnamed(n, "healthy", s.Volume)
		for _, u := range all {
			u.reads()
		}
		next.untouched()
	}
	stop()
	s.unpublishOnce()
}
