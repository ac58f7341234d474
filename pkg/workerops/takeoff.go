package workerops

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// UnmountDuplicateQuery names one placeholder on top of a stack.
type UnmountDuplicateQuery struct {
	Target string
	Mount  MountRef
	// Interim are the MOUNT_ATTR_* bits that the mount must show: nothing else
	// is ever taken off.
	Placeholder uint64
}

// UnmountDuplicateAnswer says what an error could not: that it is done. The engine
// observes anew and believes only that.
type UnmountDuplicateAnswer struct{ Done bool }

func unmountDuplicate(q UnmountDuplicateQuery) (UnmountDuplicateAnswer, error) {
	var none UnmountDuplicateAnswer
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	if err := target.showsAttr(q.Placeholder); err != nil {
		return none, err
	}
	if err := target.takesOnlyCopies(q.Mount); err != nil {
		return none, err
	}
	pause("unmount-duplicate/checked")
	if err := target.unmountTop(q.Mount); err != nil {
		return none, err
	}
	pause("unmount-duplicate/done")
	return UnmountDuplicateAnswer{Done: true}, nil
}

// takesOnlyCopies refuses when a umount of the topmost mount would take something
// else with it in another mount namespace.
func (l leaf) takesOnlyCopies(m MountRef) error {
	below, err := l.self.parentOf(m)
	if err != nil {
		return err
	}
	vanishing, err := onPeers(below)
	if err != nil || len(vanishing) == 0 {
		return err
	}
	var ours mountinfo.Entry
	err = l.self.table(func(e mountinfo.Entry) {
		if e.ID == m.OldID {
			ours = e
		}
	})
	for _, e := range vanishing {
		placeholder := hasOptions(e, "ro", "nosuid", "nodev", "noexec", "nosymfollow")
		if e.Dev != ours.Dev || e.Root != ours.Root || !placeholder {
			return refuse("the umount would also take what is mounted on %q in a mount namespace", e.Path)
		}
	}
	return err
}

// hasOptions is true for a mount that shows all of the words (mount(8)).
func hasOptions(e mountinfo.Entry, words ...string) bool {
	options := strings.Split(e.Options, ",")
	return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(options, w) })
}

// showsAttr checks the attributes of the topmost mount, as statfs gives them
// without asking the filesystem for more than its flags.
func (l leaf) showsAttr(want uint64) error {
	fd, _, err := l.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	flags := map[uint64]int64{
		unix.MOUNT_ATTR_RDONLY:      unix.ST_RDONLY,
		unix.MOUNT_ATTR_NOSUID:      unix.ST_NOSUID,
		unix.MOUNT_ATTR_NODEV:       unix.ST_NODEV,
		unix.MOUNT_ATTR_NOEXEC:      unix.ST_NOEXEC,
		unix.MOUNT_ATTR_NOSYMFOLLOW: stNoSymFollow,
	}
	for attr, flag := range flags {
		if want&attr != 0 && st.Flags&flag == 0 {
			return refuse("the topmost mount is not an placeholder one")
		}
	}
	return nil
}

// stNoSymFollow is ST_NOSYMFOLLOW (Linux 5.10).
const stNoSymFollow = 0x2000

// unmountTop unmounts the topmost mount of the leaf if it is the given one. It
// is no lazy unmount: a mount in use, or one with anything mounted on it, stays.
func (l leaf) unmountTop(want MountRef) error {
	fd, ref, err := l.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	// Our own descriptor would make the mount busy.
	_ = unix.Close(fd)
	if !ref.Same(want) {
		return refuse("%s is topmost at the mount point now", ref)
	}
	pause("unmount/matched")
	if err := unix.Fchdir(l.dir); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	err = unix.Unmount(l.name, unix.UMOUNT_NOFOLLOW)
	if chdirErr := unix.Chdir("/"); err == nil {
		err = chdirErr
	}
	if err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	// umount(2) knows names only: something may have been mounted on top since
	// the look, and gone instead of ours.
	return l.seenGone(want)
}
