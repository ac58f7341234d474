package ops

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// UnmountDuplicateQuery names one placeholder on top of a stack.
type UnmountDuplicateQuery struct {
	Target string
	Mount  facts.Ref
}

// unmountDuplicate unmounts a placeholder that an interrupted step, or one that is no longer
// wanted, left on top of a mount point. The engine observes the volume anew then, and believes
// that only.
func unmountDuplicate(q UnmountDuplicateQuery) (done bool, err error) {
	target, err := openTarget(q.Target)
	if err != nil {
		return false, err
	}
	defer target.close()
	if err := target.checkPlaceholder(); err != nil {
		return false, err
	}
	if err := target.checkTakesOnlyCopies(q.Mount); err != nil {
		return false, err
	}
	pause("unmount-duplicate/checked")
	if err := target.unmountTop(q.Mount); err != nil {
		return false, err
	}
	pause("unmount-duplicate/done")
	return true, nil
}

// checkTakesOnlyCopies refuses when a umount of m would also take another mount than copies of
// m, on a peer of the mount that m is on: a driver's own, say, in its mount namespace.
func (h targetHandle) checkTakesOnlyCopies(m facts.Ref) error {
	below, err := h.thread.parentOf(m)
	if err != nil {
		return err
	}
	vanishing, err := unmountedWith(below, "")
	if err != nil || len(vanishing) == 0 {
		return err
	}
	ours, err := h.thread.entry(m)
	for _, e := range vanishing {
		if e.Dev != ours.Dev || e.Root != ours.Root || !e.Placeholder() {
			return refuse("the umount would also take what is mounted on %q in a mount namespace", e.Path)
		}
	}
	return err
}

// placeholderFlags are the flags with which statfs(2) shows a placeholder.
const placeholderFlags = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | stNoSymFollow

// stNoSymFollow is ST_NOSYMFOLLOW (Linux 5.10).
const stNoSymFollow = 0x2000

// checkPlaceholder checks that the topmost mount has the attributes of a placeholder, as
// statfs(2) tells them: no other mount than one of ours is ever unmounted as a duplicate.
func (h targetHandle) checkPlaceholder() error {
	fd, _, err := h.top()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if st.Flags&placeholderFlags != placeholderFlags {
		return refuse("the topmost mount is no placeholder")
	}
	return nil
}
