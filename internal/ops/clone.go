package ops

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// openSource returns a reference to a healthy mount on the host, by its mount id: what was
// mounted at its path since may be another volume's.
func openSource(m facts.Mount) (int, error) {
	fd, err := thread{}.openMount(m.Path, m.Ref())
	switch {
	case errors.Is(err, operation.ErrRefused):
		err = refuse("%q was mounted anew since it was inspected", m.Path)
	case err != nil: // it does not say of which mount point
		err = fmt.Errorf("%q: %w", m.Path, err)
	}
	return fd, err
}

// cloneSource returns a detached clone of a healthy mount, or of the directory (or file)
// sub below its root. setAttr sets the attributes of the clone before it is anywhere where a
// process could reach it: no process gets more rights than at the mount that it replaces.
func cloneSource(m facts.Mount, sub string, setAttr func(fd int) error) (clone int, ref facts.Ref, err error) {
	from, err := openSource(m)
	if err != nil {
		return -1, ref, err
	}
	defer unix.Close(from)
	if sub != "" {
		// Beneath the volume's root and on its filesystem: the workload owns what lies there,
		// and a link or a mount of its own could show it the node's disk.
		below, err := openBeneath(from, sub, unix.RESOLVE_NO_XDEV)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR): // and nothing else comes in its place
			return -1, ref, fmt.Errorf("%w: the directory that was mounted is gone from the volume: %w", operation.ErrRefused, err)
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
			return -1, ref, fmt.Errorf("%w: the directory that was mounted is a link, or another filesystem, in the volume now: %w", operation.ErrRefused, err)
		case err != nil:
			return -1, ref, fmt.Errorf("look for the directory that was mounted in the volume: %w", err)
		}
		defer unix.Close(below)
		from = below
	}
	if clone, err = mount.Clone(from); err != nil {
		return -1, ref, fmt.Errorf("clone %q: %w", m.Path, err)
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

// asPlaceholder makes a clone a placeholder. It has to be private: as a peer of its source, it
// would get the mounts that are made in the source and the other way round, and an umount on
// the clone would unmount what is mounted on the source.
func asPlaceholder(fd int) error { return mount.AddAttr(fd, facts.AttrPlaceholder, unix.MS_PRIVATE) }

// openBeneath opens a mere reference (O_PATH) to a name below a directory. It follows no link.
func openBeneath(dir int, name string, resolve uint64) (int, error) {
	return mount.OpenOverNoLink(dir, name, unix.O_PATH|unix.O_NOFOLLOW, resolve|unix.RESOLVE_BENEATH)
}
