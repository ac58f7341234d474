package ops

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// umount unmounts the topmost mount if it is the given one. The umount is not lazy: a mount that
// a process uses, or on which anything is mounted, stays (EBUSY).
func (h targetHandle) umount(want facts.Ref) error {
	// checkTop closes its descriptor: one on the mount makes it busy.
	if err := h.checkTop(want); err != nil {
		return err
	}
	pause("unmount/matched")
	if err := umountIn(h.dir, h.name, unix.UMOUNT_NOFOLLOW); err != nil {
		return err
	}
	return h.checkGone(want)
}

// umountIn unmounts what is topmost at a name in a directory: umount2(2) takes no descriptor.
func umountIn(dir int, name string, flags int) error {
	if err := unix.Fchdir(dir); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := unix.Unmount(name, flags); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return nil
}

// detachTop unmounts a dead mount that is topmost at the target. umount2(2) knows names only,
// and a driver may mount something there at any instant. When no process uses the dead mount,
// MNT_EXPIRE leaves the decision to the kernel: the first call marks the topmost mount, and the
// second one unmounts it only if the topmost mount is marked and nothing used it in between. A
// dead mount in use, as by open files, is detached after it was seen to be topmost; those files
// stay dead. The mounts inside the dead mount go, too: each needs a copy in ours, if that is
// given.
func (h targetHandle) detachTop(dead, ours facts.Ref) error {
	const tries = 6
	if dead.ID == 0 {
		// Below Linux 6.8 the mount id may be another mount's a moment later, unless a
		// descriptor on the dead mount keeps it, and that one makes MNT_EXPIRE fail.
		return h.detachInUse(dead, ours)
	}
	for range tries {
		// Before each call: the mark must not come to a living mount, which the next call
		// would unmount.
		if err := h.checkUncovered(dead, ours); err != nil {
			return err
		}
		// EAGAIN: it is marked now, or was used since. EBUSY: it is in use. And the directory may
		// lie on a filesystem that is dead itself.
		if umountIn(h.dir, h.name, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW) == nil {
			return h.checkGone(dead)
		}
	}
	return h.detachInUse(dead, ours)
}

// detachInUse detaches the dead mount by a descriptor on it, through /proc/thread-self/fd: a
// mount that came in its place stays. One that is put on top of the dead mount in just that
// instant goes, too, and checkGone reports it; no system call detaches one mount alone.
func (h targetHandle) detachInUse(dead, ours facts.Ref) error {
	fd, err := h.open(dead)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	descriptors, err := h.thread.open("fd")
	if err != nil {
		return err
	}
	defer descriptors.Close()
	if err := h.checkUncovered(dead, ours); err != nil {
		return err
	}
	pause("detach/matched")
	if err := umountIn(int(descriptors.Fd()), strconv.Itoa(fd), unix.MNT_DETACH); err != nil {
		return err
	}
	return h.checkGone(dead)
}

// checkUncovered refuses when m is gone, or when a mount is on m or inside it, however deep,
// of which ours has no copy at the same path: a umount of m would take that, too.
func (h targetHandle) checkUncovered(m, ours facts.Ref) error {
	if _, err := h.thread.parentOf(m); err != nil {
		return err
	}
	if m.ID != 0 { // listmount(2), Linux 6.8
		var first [1]uint64
		if n, err := mount.List(mount.Own, m.ID, 0, first[:]); err == nil && n == 0 {
			return nil
		}
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
		for _, e := range mountsOn(on, ours.OldID, m.OldID) {
			copies[mounted{e.Path, e.Root, e.Dev}]++
		}
	}
	for _, e := range mountsOn(on, m.OldID, 0) {
		at := mounted{e.Path, e.Root, e.Dev}
		if copies[at] == 0 {
			return refuse("something else is mounted on %q", e.Path)
		}
		copies[at]--
	}
	return nil
}

// mountsOn returns the mounts on the mount id, those on them, and so on, but for the mount but
// and what is on that. on has the mounts by the id of the mount that they are on.
func mountsOn(on map[int][]facts.Mount, id, but int) (found []facts.Mount) {
	for ids := []int{id}; len(ids) > 0; ids = ids[1:] {
		for _, e := range on[ids[0]] {
			if e.OldID != but {
				found, ids = append(found, e), append(ids, e.OldID)
			}
		}
	}
	return found
}

// checkGone checks that a umount took the mount that was meant: umount2(2) knows names only,
// and another mount may have come on top meanwhile.
func (h targetHandle) checkGone(m facts.Ref) error {
	if _, err := h.thread.parentOf(m); !errors.Is(err, errNotMounted) {
		return fmt.Errorf("another mount was put on the mount point at the same time, and taken off instead of %s: %w", m, unix.EBUSY)
	}
	return nil
}
