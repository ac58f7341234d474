package ops

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// unmountTop unmounts the topmost mount if it is the given one. It
// is no lazy unmount: a mount in use, or one with anything mounted on it, stays.
func (h targetHandle) unmountTop(want facts.Ref) error {
	// It closes its descriptor, which would make the mount busy.
	if err := h.checkTop(want, topmost); err != nil {
		return err
	}
	pause("unmount/matched")
	if err := unix.Fchdir(h.dir); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	err := unix.Unmount(h.name, unix.UMOUNT_NOFOLLOW)
	if chdirErr := unix.Chdir("/"); err == nil {
		err = chdirErr
	}
	if err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return h.checkGone(want)
}

// detachTop takes a dead mount off the top of the stack. When no process uses it, that
// is one decision of the kernel: MNT_EXPIRE marks the topmost mount, and unmounts it
// the second time only if it is the one that was marked and nothing used it in between.
// One in use, as by open files, is detached after it was seen to be topmost: those files
// stay dead. What is mounted in it goes too, so there must be a copy of that in ours, if
// that is given.
func (h targetHandle) detachTop(dead, ours facts.Ref) error {
	const tries = 3
	if dead.ID == 0 {
		// Below Linux 6.8 a mount's id may be another's a moment later, unless a
		// descriptor keeps it.
		return h.detachInUse(dead, ours)
	}
	if unix.Fchdir(h.dir) != nil {
		return h.detachInUse(dead, ours) // the directory lies on something dead itself
	}
	defer func() { _ = unix.Chdir("/") }()
	for range tries {
		// Before each call: a mark must not come to a mount that lives.
		if err := h.checkUncovered(dead, ours); err != nil {
			return err
		}
		err := unix.Unmount(h.name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			return h.checkGone(dead) // another process had marked it
		}
		if !errors.Is(err, unix.EAGAIN) {
			break // in use
		}
		if err := h.checkUncovered(dead, ours); err != nil {
			return err
		}
		if err = unix.Unmount(h.name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW); err == nil {
			return h.checkGone(dead)
		}
	}
	return h.detachInUse(dead, ours)
}

// detachInUse detaches by a descriptor: a mount that came in place of the dead one
// stays. One that is put on top of it in just that instant goes too, and checkGone
// reports it; there is no call that detaches only a certain topmost mount.
func (h targetHandle) detachInUse(dead, ours facts.Ref) error {
	fd, top, err := h.top()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !top.Same(dead) {
		return refuse("%s is topmost at the mount point now", top)
	}
	descriptors, err := h.thread.open("fd")
	if err != nil {
		return err
	}
	defer descriptors.Close()
	if err := unix.Fchdir(int(descriptors.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := h.checkUncovered(dead, ours); err != nil {
		return err
	}
	pause("detach/matched")
	if err := unix.Unmount(strconv.Itoa(fd), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return h.checkGone(dead)
}

// checkUncovered refuses when a mount is gone, or anything is mounted on it or in it,
// however deep, of which there is no copy at the same path in ours: it would go too.
func (h targetHandle) checkUncovered(m, ours facts.Ref) error {
	if _, err := h.thread.parentOf(m); err != nil {
		return err
	}
	if m.ID != 0 && carriesNone(m.ID) {
		return nil
	}
	on := map[int][]facts.Mount{}
	err := h.thread.visit(func(e facts.Mount) {
		if e.OldID != e.OldParent {
			on[e.OldParent] = append(on[e.OldParent], e)
		}
	})
	if err != nil {
		return err
	}
	type mounted struct {
		path, root string
		dev        facts.Dev
	}
	copies := map[mounted]int{}
	if ours != (facts.Ref{}) {
		descend(on, ours.OldID, m.OldID, func(e facts.Mount) { copies[mounted{e.Path, e.Root, e.Dev}]++ })
	}
	var lost string
	descend(on, m.OldID, 0, func(e facts.Mount) {
		if copies[mounted{e.Path, e.Root, e.Dev}]--; copies[mounted{e.Path, e.Root, e.Dev}] < 0 && lost == "" {
			lost = e.Path
		}
	})
	if lost != "" {
		return refuse("something else is mounted on %q", lost)
	}
	return nil
}

// descend visits what is mounted on a mount, on that, and so on, but for one branch.
func descend(on map[int][]facts.Mount, id, but int, visit func(facts.Mount)) {
	for _, e := range on[id] {
		if e.OldID != but {
			visit(e)
			descend(on, e.OldID, but, visit)
		}
	}
}

// checkGone checks that a umount took the mount that was meant: umount(2) knows names
// only, and something may have been mounted on top meanwhile.
func (h targetHandle) checkGone(m facts.Ref) error {
	if _, err := h.thread.parentOf(m); !errors.Is(err, errNotMounted) {
		return fmt.Errorf("another mount was put on the mount point at the same time, and taken off instead of %s: %w", m, unix.EBUSY)
	}
	return nil
}
