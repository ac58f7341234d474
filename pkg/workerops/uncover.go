package workerops

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// UnmountDeadTopQuery names a dead mount on top of a stack, and what it hides.
type UnmountDeadTopQuery struct {
	Target string
	// Dead is the topmost mount, Superblock its filesystem.
	Dead       MountRef
	Superblock Number
	// Below is the mount right beneath it, which stays as it is.
	Below MountRef
	// Stale is true for a dead mount of NFS, which has to answer ESTALE.
	Stale bool
}

// UnmountDeadTopAnswer says what an error could not: that it is done.
type UnmountDeadTopAnswer struct{ Done bool }

func unmountDeadTop(q UnmountDeadTopQuery) (UnmountDeadTopAnswer, error) {
	var none UnmountDeadTopAnswer
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	fd, top, err := target.top()
	if err != nil {
		return none, fmt.Errorf("open the mount point: %w", err)
	}
	_ = unix.Close(fd)
	if !top.Same(q.Dead) {
		return none, refuse("%s is topmost at the mount point now", top)
	}
	below, err := parentOf(q.Dead)
	if err != nil {
		return none, err
	}
	if below.OldID != q.Below.OldID {
		return none, refuse("%s is beneath the dead mount now", below)
	}
	// A mount that nothing reaches by path cannot be taken out of its peer group.
	vanishing, err := onPeers(q.Below)
	if err != nil {
		return none, err
	}
	dead, err := target.self.entry(q.Dead)
	if err != nil {
		return none, err
	}
	isCopy := copyOf(dead, q.Superblock)
	for _, e := range vanishing {
		if e.ID != q.Dead.OldID && !isCopy(e) {
			return none, refuse("the umount would also take what is mounted on %q in a mount namespace", e.Path)
		}
	}
	if q.Stale {
		if err := target.stale(q.Dead, q.Superblock); err != nil {
			return none, err
		}
	}
	pause("unmount-dead-top/checked")
	if err := target.detachTop(q.Dead, MountRef{}); err != nil {
		return none, err
	}
	pause("unmount-dead-top/done")
	return UnmountDeadTopAnswer{Done: true}, nil
}

// detachTop takes a dead mount off the top of the leaf's stack. When nobody uses
// it, that is one decision of the kernel: MNT_EXPIRE marks the topmost mount,
// and unmounts it the second time only if it is the one that was marked and
// nobody came by in between. One in use, as by open files, is detached after it
// was seen to be topmost: those files stay dead. What stands in it goes too, so
// there must be a copy of that in ours, if that is given.
func (l leaf) detachTop(dead, ours MountRef) error {
	const tries = 3
	if dead.ID == 0 {
		// Below Linux 6.8 a mount's id may be another's a moment later, unless a
		// descriptor keeps it.
		return l.detachInUse(dead, ours)
	}
	if unix.Fchdir(l.dir) != nil {
		return l.detachInUse(dead, ours) // the directory lies on something dead itself
	}
	defer func() { _ = unix.Chdir("/") }()
	for range tries {
		// Before each call: a mark must not come to a mount that lives.
		if err := l.uncovered(dead, ours); err != nil {
			return err
		}
		err := unix.Unmount(l.name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			return l.seenGone(dead) // somebody else had marked it
		}
		if !errors.Is(err, unix.EAGAIN) {
			break // in use
		}
		if err := l.uncovered(dead, ours); err != nil {
			return err
		}
		if err = unix.Unmount(l.name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW); err == nil {
			return l.seenGone(dead)
		}
	}
	return l.detachInUse(dead, ours)
}

// detachInUse detaches by a descriptor: a mount that came in place of the dead one
// stays. One that comes on top of it in just that instant goes too, and seenGone
// tells; there is no call that asks for a certain topmost mount.
func (l leaf) detachInUse(dead, ours MountRef) error {
	fd, top, err := l.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !top.Same(dead) {
		return refuse("%s is topmost at the mount point now", top)
	}
	descriptors, err := l.self.open("fd")
	if err != nil {
		return err
	}
	defer descriptors.Close()
	if err := unix.Fchdir(int(descriptors.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := l.uncovered(dead, ours); err != nil {
		return err
	}
	pause("detach/matched")
	if err := unix.Unmount(strconv.Itoa(fd), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return l.seenGone(dead)
}

// unmount-dead-top refuses when a mount is gone, or anything stands on it or in it, however
// deep, that there is no copy of at the same path in ours: it would go too.
func (l leaf) uncovered(m, ours MountRef) error {
	if _, err := l.self.parentOf(m); err != nil {
		return err
	}
	if m.ID != 0 && carriesNone(m.ID) {
		return nil
	}
	on := map[int][]mountinfo.Entry{}
	err := l.self.table(func(e mountinfo.Entry) {
		if e.ID != e.Parent {
			on[e.Parent] = append(on[e.Parent], e)
		}
	})
	if err != nil {
		return err
	}
	type mounted struct{ path, dev, root string }
	copies := map[mounted]int{}
	if ours != (MountRef{}) {
		descend(on, ours.OldID, m.OldID, func(e mountinfo.Entry) { copies[mounted{e.Path, e.Dev, e.Root}]++ })
	}
	var lost string
	descend(on, m.OldID, 0, func(e mountinfo.Entry) {
		if copies[mounted{e.Path, e.Dev, e.Root}]--; copies[mounted{e.Path, e.Dev, e.Root}] < 0 && lost == "" {
			lost = e.Path
		}
	})
	if lost != "" {
		return refuse("something else is mounted on %q", lost)
	}
	return nil
}

// descend visits what stands on a mount, on that, and so on, but for one branch.
func descend(on map[int][]mountinfo.Entry, id, but int, visit func(mountinfo.Entry)) {
	for _, e := range on[id] {
		if e.ID != but {
			visit(e)
			descend(on, e.ID, but, visit)
		}
	}
}

// seenGone checks that a umount took the mount that was meant: umount(2) knows
// names only.
func (l leaf) seenGone(m MountRef) error {
	if !l.self.gone(m) {
		return fmt.Errorf("another mount was put on the mount point at the same time, and taken off instead of %s: %w", m, unix.EBUSY)
	}
	return nil
}
