package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// What golang.org/x/sys lacks.
const (
	// moveBeneath is MOVE_MOUNT_BENEATH (move_mount(2), Linux 6.5).
	moveBeneath = 0x200
	// ResolveCached is RESOLVE_CACHED (openat2(2), Linux 5.12).
	ResolveCached = 0x20
)

// RetryEINTR repeats a system call that a signal interrupted: the Go runtime
// preempts threads with signals.
func RetryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Open opens a name in a directory, or with unix.AT_FDCWD a path.
func Open(dir int, name string, flags int) (int, error) {
	return RetryEINTR(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0) })
}

// OpenOverNoLink is Open that follows no symbolic link, whichever component is one, within the bounds
// of resolve (RESOLVE_BENEATH and such).
func OpenOverNoLink(dir int, name string, flags, resolve uint64) (int, error) {
	return RetryEINTR(func() (int, error) {
		return unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: resolve | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}

// OpenTop returns a reference to what is topmost at a name in a directory. It follows
// no link and asks no filesystem that is mounted there.
func OpenTop(dir int, name string) (int, error) {
	return RetryEINTR(func() (int, error) {
		return unix.OpenTree(dir, name, unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
}

// Clone returns a detached clone of the mount that a descriptor is on, which shows the
// descriptor's directory or file.
func Clone(fd int) (int, error) { return clone(fd, 0) }

// CloneTree is Clone with all that is mounted in it.
func CloneTree(fd int) (int, error) { return clone(fd, unix.AT_RECURSIVE) }

func clone(fd int, flags uint) (int, error) {
	return RetryEINTR(func() (int, error) {
		return unix.OpenTree(fd, "", flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	})
}

// SetAttr sets the given attributes of a mount and clears all others that a step
// decides on. propagation is MS_PRIVATE or such, 0 to leave it.
func SetAttr(fd int, attr facts.Attr, propagation uint64) error {
	return setattr(fd, &unix.MountAttr{
		Attr_set:    uint64(attr & (facts.AttrSettable | unix.MOUNT_ATTR__ATIME)),
		Attr_clr:    uint64(facts.AttrSettable&^attr | unix.MOUNT_ATTR__ATIME),
		Propagation: propagation,
	})
}

// AddAttr sets attributes of a mount and leaves all others.
func AddAttr(fd int, attr facts.Attr, propagation uint64) error {
	return setattr(fd, &unix.MountAttr{Attr_set: uint64(attr), Propagation: propagation})
}

func setattr(fd int, attr *unix.MountAttr) error {
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

const byDescriptors = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH

// MoveTo moves a detached mount to a name in a directory.
func MoveTo(fd, dir int, name string) error {
	return moved(unix.MoveMount(fd, "", dir, name, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// MoveOnto moves a detached mount onto a mount, or onto a directory in one.
func MoveOnto(fd, on int) error { return moved(unix.MoveMount(fd, "", on, "", byDescriptors)) }

// MoveBeneath moves a detached mount beneath a mount (Linux 6.5).
func MoveBeneath(fd, top int) error {
	return moved(unix.MoveMount(fd, "", top, "", byDescriptors|moveBeneath))
}

// JoinGroup makes a mount a member of the peer group of another one.
func JoinGroup(of, fd int) error {
	return moved(unix.MoveMount(of, "", fd, "", byDescriptors|unix.MOVE_MOUNT_SET_GROUP))
}

func moved(err error) error {
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// CanMove reports whether the kernel can move mounts (Linux 5.2) and no seccomp filter
// forbids it.
func CanMove() bool { return canMove(0) }

// CanMoveBeneath reports whether it can move a mount beneath another one (Linux 6.5).
func CanMoveBeneath() bool { return canMove(moveBeneath) }

// canMove asks the kernel, which looks at the flags before it looks at descriptors.
func canMove(flags int) bool {
	return errors.Is(unix.MoveMount(-1, "", -1, "", byDescriptors|flags), unix.EBADF)
}
