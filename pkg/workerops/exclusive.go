package workerops

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExclusiveQuery asks whether a block device is claimed.
type ExclusiveQuery struct {
	// Device is the node, Number what it must be a node of.
	Device string
	Number Number
}

// ExclusiveAnswer is the kernel's answer.
type ExclusiveAnswer struct {
	// Errno is EBUSY when the device is claimed, 0 when it is not, and ENXIO
	// when the node is not that of the device.
	Errno syscall.Errno
}

// exclusive opens the device with O_EXCL (open(2), blkdev_open in the kernel)
// and closes it at once.
//
// EBUSY: a filesystem has it mounted, also lazily unmounted but in use, or it
// is swap, or a device-mapper, md or bcache device lies on it, or on a
// partition of it, or a program opened it with O_EXCL. Success does not show
// that it is unused: plain openers and loop devices on it claim nothing, and a
// claim of one device is not seen through a second one on the same storage.
//
// Some drivers wait in open while they recover from errors, and another process
// that mounts it in the very moment of our claim gets EBUSY: ask only for what is
// known to be sick, never in the course of a check.
func exclusive(q ExclusiveQuery) (ExclusiveAnswer, error) {
	node, err := openNode(q.Device, q.Number.Major, q.Number.Minor)
	if err != nil {
		return ExclusiveAnswer{Errno: errnoOf(err)}, nil
	}
	defer unix.Close(node)
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", node), unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return ExclusiveAnswer{Errno: errnoOf(err)}, nil
	}
	return ExclusiveAnswer{}, unix.Close(fd)
}
