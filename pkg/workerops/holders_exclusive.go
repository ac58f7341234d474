package workerops

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExclusiveQuery asks whether anybody has claimed a block device.
type ExclusiveQuery struct {
	// Device is the node, Number what it must be a node of.
	Device string
	Number Number
}

// ExclusiveAnswer is what the kernel said.
type ExclusiveAnswer struct {
	// Errno is EBUSY when the device is claimed, 0 when it is not, and ENXIO
	// when something else is at the node.
	Errno syscall.Errno
}

// exclusive opens the device with O_EXCL (open(2), blkdev_open in the kernel)
// and closes it at once.
//
// EBUSY: a filesystem has it mounted, also lazily unmounted but in use, or it
// is swap, or a device-mapper, md or bcache device lies on it, or on a
// partition of it, or a program opened it with O_EXCL. Success does not show
// that nobody uses it: plain openers and loop devices on it claim nothing, and
// neither does a second device on the same storage know of the first one's.
//
// Some drivers wait in open while they recover from errors, and a mount of
// somebody else that comes in the very moment of our claim gets EBUSY: ask only
// for what is known to be sick, never in the course of a check.
func exclusive(q ExclusiveQuery) (ExclusiveAnswer, error) {
	node, err := retryEINTR(func() (int, error) { return unix.Open(q.Device, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return ExclusiveAnswer{Errno: errnoOf(err)}, nil
	}
	defer unix.Close(node)
	// Looked at before it is opened: some devices act on being opened.
	var st unix.Statx_t
	err = unix.Statx(node, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || (Number{st.Rdev_major, st.Rdev_minor}) != q.Number {
		return ExclusiveAnswer{Errno: unix.ENXIO}, nil
	}
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", node), unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return ExclusiveAnswer{Errno: errnoOf(err)}, nil
	}
	return ExclusiveAnswer{}, unix.Close(fd)
}
