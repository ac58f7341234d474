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

// unmountDuplicate unmounts a placeholder. The engine observes anew and believes only
// that.
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

// checkTakesOnlyCopies refuses when a umount of the topmost mount would take something
// else with it in another mount namespace.
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

// checkPlaceholder checks the attributes of the topmost mount, as statfs tells them
// without asking the filesystem for more than its flags: nothing else is ever taken off.
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
