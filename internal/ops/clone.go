package ops

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// Source names what is cloned.
type Source struct {
	// Path is that of a healthy mount on the host, Mount the mount expected there.
	Path  string
	Mount mount.Ref
	// Sub is the directory (or file) below its root that the mount point shows; empty
	// for the root itself.
	Sub string
}

// open returns a reference to the mount.
func (s Source) open() (int, error) {
	at, err := openTarget(s.Path)
	if err != nil {
		return -1, err
	}
	defer at.close()
	fd, ref, err := at.top()
	if err != nil {
		return -1, fmt.Errorf("%q: %w", s.Path, err)
	}
	if !ref.Same(s.Mount) {
		_ = unix.Close(fd)
		return -1, refuse("%q was mounted anew since it was inspected", s.Path)
	}
	return fd, nil
}

// clone returns a detached clone of what is named, with all that makes it safe: no
// process that reaches it has more rights than at the mount that it replaces.
func (s Source) clone(setAttr func(fd int) error) (clone int, ref mount.Ref, err error) {
	from, err := s.open()
	if err != nil {
		return -1, ref, err
	}
	defer func() { _ = unix.Close(from) }()
	if s.Sub != "" {
		// Beneath the volume and nowhere else: its content belongs to the workload,
		// which may have put links and mounts there.
		sub, err := openBeneath(from, s.Sub, unix.RESOLVE_NO_XDEV)
		if err != nil {
			return -1, ref, missing(err)
		}
		_ = unix.Close(from)
		from = sub
	}
	if clone, err = mount.Clone(from); err != nil {
		return -1, ref, fmt.Errorf("clone %q: %w", s.Path, err)
	}
	if err = setAttr(clone); err != nil {
		err = fmt.Errorf("the clone: %w", err)
	} else {
		ref, err = thread{}.refOf(clone)
	}
	if err != nil {
		_ = unix.Close(clone)
		return -1, ref, err
	}
	return clone, ref, nil
}

// asPlaceholder makes a clone a placeholder. Private, or mounts made in the source or in
// the clone would appear in the other, and a umount on the clone would take what is
// mounted on its peers.
func asPlaceholder(fd int) error { return mount.AddAttr(fd, mount.AttrPlaceholder, unix.MS_PRIVATE) }

// openBeneath opens a mere reference to something below a directory. It follows no
// link.
func openBeneath(dir int, name string, resolve uint64) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
			Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}

// missing explains why the directory (or file) of a mount point was not found in the
// volume. What lies there belongs to the workload.
func missing(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: the directory that was mounted is gone from the volume: %w", worker.ErrRefused, err)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: the directory that was mounted is a link, or another filesystem, in the volume now: %w", worker.ErrRefused, err)
	}
	return fmt.Errorf("look for the directory that was mounted in the volume: %w", err)
}
