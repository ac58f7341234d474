package workerops

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A kernel that cannot put a mount beneath another one (below Linux 6.5) gets a
// clone of the staged mount on top of the dead one. Only a mount that never
// answers again is covered: its FUSE connection is gone (ENOTCONN). It is made
// private first, or the clone would appear on all of its peers, the staged mount
// among them. A driver that unpublishes unmounts the clone, meets the dead mount,
// in which nothing can be deleted, and takes that off when it tries again.

// CoverQuery says what to put on top of what.
type CoverQuery struct {
	AttachQuery
	// Dead is the mount expected topmost at Target, Superblock its filesystem.
	Dead       MountRef
	Superblock Number
}

func cover(q CoverQuery) (AttachAnswer, error) {
	var none AttachAnswer
	if q.Placeholder&unix.MOUNT_ATTR_RDONLY == 0 {
		return none, refuse("an placeholder must be read-only")
	}
	clone, err := cloneOf(q.AttachQuery)
	if err != nil {
		return none, err
	}
	defer unix.Close(clone)
	err = unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: q.Placeholder, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return none, fmt.Errorf("mount_setattr on the clone: %w", err)
	}
	ours, err := refOf(clone)
	if err != nil {
		return none, err
	}
	pause("cover/cloned")
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	if err := target.cover(clone, ours, q.Dead, q.Superblock, func() { pause("cover/checked") }); err != nil {
		return none, err
	}
	pause("cover/verified")
	return AttachAnswer{Mount: ours}, nil
}

// cover puts a clone on top of the leaf's topmost mount, if that is the given one,
// carries nothing, and is dead for good. checked is called right before.
func (l leaf) cover(clone int, ours, dead MountRef, superblock Number, checked func()) error {
	fd, top, err := l.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	// As long as it is open, its id is given to no other mount.
	defer unix.Close(fd)
	if !top.Same(dead) {
		return refuse("%s is at the mount point now", top)
	}
	if err := l.deadFUSE(fd, dead, superblock); err != nil {
		return err
	}
	if err := l.uncovered(dead, MountRef{}); err != nil {
		return err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return fmt.Errorf("mount_setattr on what is dead: %w", err)
	}
	checked()
	// By descriptor: on this mount, or nowhere.
	err = unix.MoveMount(clone, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("move_mount onto what is at the mount point: %w", err)
	}
	if err := l.alone(ours, dead); err != nil {
		if offErr := l.unmountTop(ours); offErr != nil {
			return fmt.Errorf("%w; taking ours off again: %w", err, offErr)
		}
		return err
	}
	return nil
}

// isFUSE is true for a filesystem that a daemon serves: only there ENOTCONN is final.
func isFUSE(fsType string) bool {
	kind, _, _ := strings.Cut(fsType, ".")
	return kind == "fuse" || kind == "fuseblk"
}

// deadFUSE refuses a mount that is not of the FUSE superblock that was meant, and
// one that may answer again.
func (l leaf) deadFUSE(fd int, m MountRef, superblock Number) error {
	entry, err := l.self.entry(m)
	if err != nil {
		return err
	}
	if dev, ok := parseNumber(entry.Dev); !ok || dev != superblock || !isFUSE(entry.FSType) {
		return refuse("another filesystem is at the mount point now")
	}
	if errno := answers(fd); !errors.Is(errno, unix.ENOTCONN) {
		return refuse("only what answers ENOTCONN is covered, and this answers %q", errno)
	}
	return nil
}
