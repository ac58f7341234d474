package ops

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// stack is a mount point with a dead FUSE mount on a live tmpfs.
type stack struct {
	path, dir  string
	live, dead facts.Ref
	number     facts.Dev
}

// newStack makes one on a parent mount of its own, which shares its events if that is asked
// for.
func newStack(t *testing.T, shared bool) stack {
	t.Helper()
	needsRoot(t)
	s := stack{dir: realDir(t)}
	must(t, unix.Mount("parent", s.dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(s.dir, unix.MNT_DETACH) })
	if shared {
		must(t, unix.Mount("", s.dir, "", unix.MS_SHARED, ""))
	}
	s.path = filepath.Join(s.dir, "mount point")
	must(t, os.Mkdir(s.path, 0o700))
	must(t, unix.Mount("live", s.path, "tmpfs", 0, ""))
	must(t, os.WriteFile(s.path+"/file", []byte("data"), 0o600))
	s.live = topAt(t, s.path)
	s.number = deadAt(t, s.path)
	s.dead = topAt(t, s.path)
	return s
}

// deadAt mounts a FUSE filesystem whose daemon ends at once.
func deadAt(t *testing.T, path string) facts.Dev {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Mount("test-dead", path, "fuse", 0, "fd="+strconv.Itoa(fd)+",rootmode=40000,user_id=0,group_id=0"))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return numberOf(t, path)
}

func mountAt(t *testing.T, path string) facts.Mount {
	ref := topAt(t, path)
	return facts.Mount{Path: path, ID: ref.ID, OldID: ref.OldID}
}

func topAt(t *testing.T, path string) facts.Ref {
	t.Helper()
	l, err := openTarget(path)
	must(t, err)
	defer l.close()
	fd, ref, err := l.top()
	must(t, err)
	_ = unix.Close(fd)
	return ref
}

func (s stack) query() facts.UnmountPlan {
	return facts.UnmountPlan{Top: facts.Mount{Path: s.path, ID: s.dead.ID, OldID: s.dead.OldID, Dev: s.number}, Below: s.live}
}

// onlyLive checks that the live mount, and nothing else, is at the mount point.
func (s stack) onlyLive(t *testing.T) {
	t.Helper()
	if got, err := os.ReadFile(s.path + "/file"); err != nil || string(got) != "data" || !topAt(t, s.path).Same(s.live) {
		t.Errorf("%q, %v, %v on top", got, err, topAt(t, s.path))
	}
}

func TestUnmountDeadTop(t *testing.T) {
	for name, shared := range map[string]bool{"private": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, shared)
			if _, err := unmountTop(s.query()); err != nil {
				t.Fatal(err)
			}
			s.onlyLive(t)
			if _, err := unmountTop(s.query()); !errors.Is(err, operation.ErrRefused) {
				t.Errorf("a second time: %v", err)
			}
			s.onlyLive(t)
		})
	}
}

// Open files stay with the dead mount, and do not keep it there.
func TestUnmountDeadTopWhatIsInUse(t *testing.T) {
	s := newStack(t, false)
	fd, err := unix.Open(s.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	if _, err := unmountTop(s.query()); err != nil {
		t.Fatal(err)
	}
	s.onlyLive(t)
}

// Without unique ids (below Linux 6.8) an id may be another mount's by now.
func TestUnmountDeadTopWithoutUniqueIDs(t *testing.T) {
	s := newStack(t, false)
	s.dead.ID, s.live.ID = 0, 0
	if _, err := unmountTop(s.query()); err != nil {
		t.Fatal(err)
	}
	s.onlyLive(t)
}

func TestUnmountDeadTopIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *stack, *facts.UnmountPlan){
		"another on top": func(t *testing.T, s *stack, _ *facts.UnmountPlan) {
			must(t, unix.Mount("top", s.path, "tmpfs", 0, ""))
			t.Cleanup(func() { _ = unix.Unmount(s.path, unix.MNT_DETACH) })
		},
		"another is meant": func(_ *testing.T, s *stack, q *facts.UnmountPlan) {
			q.Top.ID, q.Top.OldID = s.live.ID, s.live.OldID
		},
		"another below": func(_ *testing.T, s *stack, q *facts.UnmountPlan) {
			q.Below = facts.Ref{ID: s.dead.ID, OldID: s.dead.OldID}
		},
		"no such mount point": func(_ *testing.T, s *stack, q *facts.UnmountPlan) { q.Top.Path = s.dir + "/" },
		"a live one on top":   func(t *testing.T, s *stack, _ *facts.UnmountPlan) { must(t, unix.Unmount(s.path, unix.MNT_DETACH)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, false)
			q := s.query()
			spoil(t, &s, &q)
			before := topAt(t, s.path)
			if _, err := unmountTop(q); !errors.Is(err, operation.ErrRefused) && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%v, want a refusal", err)
			}
			if now := topAt(t, s.path); !now.Same(before) {
				t.Errorf("%s is on top, before %s", now, before)
			}
		})
	}
}

// A umount takes what stands at the same mount point on the peers of the mount below.
func TestUnmountDeadTopThatWouldTakeOthers(t *testing.T) {
	needsRoot(t)
	dir := realDir(t)
	must(t, unix.Mount("parent", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := stack{dir: dir, path: dir + "/mount point"}
	peer := dir + "/peer"
	must(t, os.Mkdir(s.path, 0o700))
	must(t, os.Mkdir(peer, 0o700))
	must(t, unix.Mount("live", s.path, "tmpfs", 0, ""))
	must(t, unix.Mount("", s.path, "", unix.MS_SHARED, ""))
	must(t, os.WriteFile(s.path+"/file", []byte("data"), 0o600))
	s.live = topAt(t, s.path)
	must(t, unix.Mount(s.path, peer, "", unix.MS_BIND, ""))
	fd, err := unix.Open(peer, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	s.number = deadAt(t, s.path) // and on the peer
	s.dead = topAt(t, s.path)
	// The peer still follows, but now has something of its own.
	must(t, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_SLAVE}))
	must(t, unix.Close(fd))
	must(t, unix.Unmount(peer, unix.MNT_DETACH))
	must(t, unix.Mount("other", peer, "tmpfs", 0, ""))
	other := topAt(t, peer)
	if _, err := unmountTop(s.query()); !errors.Is(err, operation.ErrRefused) || !strings.Contains(err.Error(), peer) {
		t.Errorf("%v, want a refusal", err)
	}
	if now := topAt(t, peer); !now.Same(other) || !topAt(t, s.path).Same(s.dead) {
		t.Errorf("%s is on the peer, before %s", now, other)
	}
}

// A placeholder goes only from the mount that it was seen to be a duplicate of: umount would
// uncover another one.
func TestUnmountPlaceholder(t *testing.T) {
	needsRoot(t)
	dir := realDir(t)
	must(t, unix.Mount("live", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	live := topAt(t, dir)
	bind := func() {
		t.Helper()
		must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	attr := func(set func(fd int) error) {
		t.Helper()
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, set(fd))
	}
	bind()
	another := topAt(t, dir)
	bind()
	attr(asPlaceholder)
	plan := facts.UnmountPlan{Top: mountAt(t, dir), Placeholder: true, Below: live}
	if _, err := unmountTop(plan); !errors.Is(err, operation.ErrRefused) || !topAt(t, dir).Same(plan.Top.Ref()) {
		t.Errorf("another mount beneath: %v, want a refusal", err)
	}
	plan.Below = another
	attr(func(fd int) error { return mount.SetAttr(fd, facts.AttrReadOnly, 0) })
	if _, err := unmountTop(plan); !errors.Is(err, operation.ErrRefused) || !topAt(t, dir).Same(plan.Top.Ref()) {
		t.Errorf("no placeholder any more: %v, want a refusal", err)
	}
	attr(asPlaceholder)
	if _, err := unmountTop(plan); err != nil || !topAt(t, dir).Same(another) {
		t.Errorf("%v", err)
	}
}

// Where a placeholder is on a directory, its umount takes what stands at that directory on the
// peers of the mount below: a driver's own, say. Only copies of the placeholder may go.
func TestUnmountPlaceholderThatWouldTakeOthers(t *testing.T) {
	needsRoot(t)
	withAttr := func(path string, set func(fd int) error) {
		t.Helper()
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, set(fd))
	}
	for name, tc := range map[string]struct {
		put     func(ours, at string)
		refused bool
	}{
		"another filesystem": {func(_, at string) { must(t, unix.Mount("other", at, "tmpfs", 0, "")) }, true},
		"the volume itself": {func(ours, at string) {
			must(t, unix.Mount(ours, at, "", unix.MS_BIND, ""))
			withAttr(at, func(fd int) error { return mount.SetAttr(fd, 0, 0) })
		}, true},
		"a placeholder of another directory": {func(ours, at string) {
			must(t, unix.Mount(ours+"/sub", at, "", unix.MS_BIND, ""))
			withAttr(at, asPlaceholder)
		}, true},
		"a copy": {func(ours, at string) { must(t, unix.Mount(ours, at, "", unix.MS_BIND, "")) }, false},
	} {
		dir, peer := realDir(t), realDir(t)
		must(t, unix.Mount("parent", dir, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
		ours := dir + "/mount point"
		must(t, os.Mkdir(ours, 0o700))
		below := topAt(t, dir)
		must(t, unix.Mount(dir, peer, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(peer, unix.MNT_DETACH) })
		must(t, unix.Mount("", peer, "", unix.MS_SLAVE, ""))
		must(t, unix.Mount("ours", ours, "tmpfs", 0, "")) // and on the peer
		must(t, os.Mkdir(ours+"/sub", 0o700))
		withAttr(ours, asPlaceholder)
		must(t, unix.Unmount(peer+"/mount point", 0))
		tc.put(ours, peer+"/mount point")
		other := topAt(t, peer+"/mount point")
		_, err := unmountTop(facts.UnmountPlan{Top: mountAt(t, ours), Placeholder: true, Below: below})
		switch {
		case !tc.refused && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.refused && (!errors.Is(err, operation.ErrRefused) || !strings.Contains(err.Error(), peer)):
			t.Errorf("%s: %v, want a refusal", name, err)
		case tc.refused && !topAt(t, peer+"/mount point").Same(other):
			t.Errorf("%s: it is not on the peer any more", name)
		}
	}
}

// What stands in a dead mount goes with it, unless there is a copy of it.
func TestDetachTopKeepsWhatStandsInIt(t *testing.T) {
	needsRoot(t)
	dir := realDir(t)
	must(t, unix.Mount("top", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	must(t, os.Mkdir(dir+"/in", 0o700))
	must(t, unix.Mount("in", dir+"/in", "tmpfs", 0, ""))
	ours := topAt(t, dir)
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	must(t, err)
	must(t, unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH))
	must(t, unix.Close(tree))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	top := topAt(t, dir)
	l, err := openTarget(dir)
	must(t, err)
	defer l.close()
	if err := l.detachTop(top, facts.Ref{}); !errors.Is(err, operation.ErrRefused) || !topAt(t, dir).Same(top) {
		t.Errorf("%v, want a refusal", err)
	}
	must(t, unix.Mkdir(dir+"/more", 0o700))
	must(t, unix.Mount("more", dir+"/more", "tmpfs", 0, ""))
	if err := l.detachTop(top, ours); !errors.Is(err, operation.ErrRefused) || !strings.Contains(err.Error(), dir+"/more") || !topAt(t, dir).Same(top) {
		t.Errorf("one more in it: %v, want a refusal", err)
	}
	must(t, unix.Unmount(dir+"/more", 0))
	if err := l.detachTop(top, ours); err != nil || !topAt(t, dir).Same(ours) || topAt(t, dir+"/in") == ours {
		t.Errorf("with a copy of it: %v", err)
	}
}

// A daemon that answers again has not ended, whatever it answered before.
func TestUnmountDeadTopThatAnswersAgain(t *testing.T) {
	s := newStack(t, false)
	must(t, unix.Unmount(s.path, unix.MNT_DETACH))
	d := mountFUSE(t, s.path)
	defer d.end()
	q := facts.UnmountPlan{Top: mountAtPath(t, s.path), Below: s.live}
	top := topAt(t, s.path)
	q.Top.ID, q.Top.OldID = top.ID, top.OldID
	if _, err := unmountTop(q); !errors.Is(err, operation.ErrRefused) || !topAt(t, s.path).Same(top) {
		t.Errorf("%v, want a refusal", err)
	}
}

// A filesystem on a disk of which the kernel does not show that it has ended must not answer either.
func TestUnmountDeadTopThatAnswers(t *testing.T) {
	s := newStack(t, false)
	must(t, unix.Mount("top", s.path, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(s.path, unix.MNT_DETACH) })
	q := facts.UnmountPlan{Top: mountAtPath(t, s.path), Below: s.dead}
	q.Top.ID = topAt(t, s.path).ID
	if _, err := unmountTop(q); !errors.Is(err, operation.ErrRefused) || !topAt(t, s.path).Same(q.Top.Ref()) {
		t.Errorf("%v, want a refusal", err)
	}
	q.Ended = true
	if _, err := unmountTop(q); err != nil || !topAt(t, s.path).Same(s.dead) {
		t.Errorf("one that has ended: %v", err)
	}
}

// Of a mount that is not there it is not known what goes with an umount on it.
func TestUnmountedWithWhatIsGone(t *testing.T) {
	needsRoot(t)
	if err := (targetHandle{}).checkTakesOnly(facts.Ref{OldID: 1 << 30}, nil); !errors.Is(err, operation.ErrRefused) {
		t.Errorf("%v, want a refusal", err)
	}
}

// Without unique ids the dead mount is kept by a descriptor, and goes all the same.
func TestUnmountDeadWithoutUniqueIDs(t *testing.T) {
	s := newStack(t, false)
	must(t, unix.Unmount(s.path, unix.MNT_DETACH))
	must(t, unix.Unmount(s.path, unix.MNT_DETACH))
	bare := topAt(t, s.path)
	dead := facts.Mount{Path: s.path, Dev: deadAt(t, s.path), FSType: "fuse", Source: "test-dead"}
	dead.OldID = topAt(t, s.path).OldID
	if _, err := unmountDead(UnmountDeadQuery{Target: s.path, Stack: []facts.Mount{dead}}); err != nil {
		t.Fatal(err)
	}
	if now := topAt(t, s.path); !now.Same(bare) {
		t.Errorf("%s is there now, want %s", now, bare)
	}
}
