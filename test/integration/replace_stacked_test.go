package integration

import (
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// buried is a volume whose driver has published it again, and on top of that
// stands the dead mount of before.
func buried(t *testing.T, n *harness.Node) (s *served, live uint64) {
	t.Helper()
	s = newServed(n, "buried")
	// On a shared one the dead mount would come to stand on its peers, too.
	harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
	s.known()
	dead := s.Keep()
	s.die()
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Mount(s.Staging, s.MountPoint(), "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
	live = harness.MountID(t, s.MountPoint())
	harness.Must(t, unix.Mount(dead, s.MountPoint(), "", unix.MS_BIND, ""))
	harness.Must(t, unix.Unmount(dead, unix.MNT_DETACH))
	return s, live
}

// TestUnmountDeadTop unmounts a dead mount from a live one, to which nothing happens.
func TestUnmountDeadTop(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s, live := buried(t, n)
	n.Expect("healed", s.Request(), "unmount-dead-top")
	s.back()
	if got := harness.MountID(t, s.MountPoint()); got != live {
		t.Errorf("the live mount %d became %d", live, got)
	}
	n.Expect("healthy", s.Request())
}

// TestUnmountDeadTopKilled kills worker and server while a dead mount is unmounted.
func TestUnmountDeadTopKilled(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range []string{"unmount-dead-top/checked", "unmount-dead-top/done"} {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone")
				n.Pause = instant
				n.Start()
				s, live := buried(t, n)
				h := halfway{t: t, n: n, v: s.Volume, Begun: n.BeginAndStop(s.Request())}
				h.kill(victim)
				s.back()
				if got := harness.MountID(t, s.MountPoint()); got != live {
					t.Errorf("the live mount %d became %d", live, got)
				}
			})
		}
	}
}

// TestUnmountDeadTopOnlyTheDead has the driver unmount the dead one by itself, at the
// last instant: the live one beneath it stays.
func TestUnmountDeadTopOnlyTheDead(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Pause = "unmount-dead-top/checked"
	n.Start()
	s, live := buried(t, n)
	call := n.BeginAndStop(s.Request())
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	call.Resume()
	if a := call.LetGo(); a == nil || a.GetAbnormal() {
		t.Errorf("got %v", a)
	}
	if got := harness.MountID(t, s.MountPoint()); got != live {
		t.Errorf("the live mount %d became %d", live, got)
	}
	s.back()
}

// buriedShared is a volume whose dead mount stands on the live one and, because
// that shares its events, on staging and on elsewhere as well.
func buriedShared(t *testing.T, n *harness.Node) (s *served, peer string) {
	t.Helper()
	s = newServed(n, "a peer").known()
	dead := s.Keep()
	s.die()
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Mount(s.Staging, s.MountPoint(), "", unix.MS_BIND, ""))
	peer = filepath.Join(n.Dir, "elsewhere")
	harness.Mkdir(t, peer)
	harness.Must(t, unix.Mount(s.Staging, peer, "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", peer, "", unix.MS_SLAVE, ""))
	harness.Must(t, unix.Mount(dead, s.MountPoint(), "", unix.MS_BIND, ""))
	for _, path := range []string{s.Staging, s.MountPoint(), peer} {
		if len(harness.Layers(t, path)) != 2 {
			t.Fatalf("the dead mount did not propagate to %s: the test shows nothing", path)
		}
	}
	return s, peer
}

// alive returns the ids of the live layers of a volume at some paths.
func (s *served) alive(paths ...string) []int {
	s.Node.T.Helper()
	var ids []int
	for _, path := range paths {
		for _, m := range harness.Layers(s.Node.T, path) {
			if m.Dev == s.disk.Dev() {
				ids = append(ids, m.OldID)
			}
		}
	}
	return ids
}

// TestUnmountDeadTopWithPropagatedMounts leaves every live mount where it is, also
// when copies of the dead mount stand on its peers.
func TestUnmountDeadTopWithPropagatedMounts(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s, peer := buriedShared(t, n)
	before := s.alive(s.Staging, s.MountPoint(), peer)
	if _, err := n.Call(s.Request()); err != nil {
		t.Fatal(err)
	}
	if got := s.alive(s.Staging, s.MountPoint(), peer); !slices.Equal(got, before) || len(got) != 3 {
		t.Errorf("the live mounts %v became %v", before, got)
	}
}

// TestUnmountDeadTopWithALivingPropagatedMount has a live mount where a peer has its
// copy of the dead mount: a umount would propagate to it.
func TestUnmountDeadTopWithALivingPropagatedMount(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s, peer := buriedShared(t, n)
	harness.Must(t, unix.Mount("", s.Staging, "", unix.MS_PRIVATE, "")) // of the top
	harness.Must(t, unix.Unmount(peer, 0))
	harness.Must(t, unix.Mount("unrelated", peer, "tmpfs", 0, "size=1m"))
	before := idsAt(t, peer)
	for range 2 {
		if _, err := n.Call(s.Request()); err != nil {
			t.Fatal(err)
		}
		if got := idsAt(t, peer); !slices.Equal(got, before) {
			t.Errorf("the mounts elsewhere %v became %v", before, got)
		}
	}
}

// idsAt returns the ids of all mounts on some paths.
func idsAt(t testing.TB, paths ...string) []int {
	t.Helper()
	var ids []int
	for _, p := range paths {
		layers := harness.Layers(t, p)
		slices.SortFunc(layers, func(a, b facts.Mount) int { return a.OldID - b.OldID })
		for _, m := range layers {
			ids = append(ids, m.OldID)
		}
	}
	return ids
}
