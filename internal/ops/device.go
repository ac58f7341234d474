package ops

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// deviceBlock is what a probe reads of a device, in bytes; more where a logical
// block is larger.
const deviceBlock = 4096

// openDevice is the operation that fails on a device that cannot be opened.
const openDevice = "open the device"

// dead are the errnos with which a device that is offline or gone refuses to be
// opened; others are about the caller.
var dead = []syscall.Errno{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO}

// readBehind reads one block of the device behind a filesystem, by the name of its node:
// the filesystem itself answers from memory for as long as it can. It returns no error for
// a device that cannot be opened and for another one at its name: neither tells anything.
func readBehind(name string, dev facts.Dev) (a facts.OpenedDevice, op string, errno syscall.Errno) {
	node, err := mount.Open(unix.AT_FDCWD, name, unix.O_PATH)
	if err != nil {
		return a, "", 0
	}
	defer unix.Close(node)
	var st unix.Statx_t
	err = unix.Statx(node, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	if err != nil || kindOf(st) != facts.KindBlock || dev != (facts.Dev{Major: st.Rdev_major, Minor: st.Rdev_minor}) {
		return a, "", 0 // some devices act on being opened
	}
	a, op, errno = readNode(node, dev)
	if op == openDevice && !slices.Contains(dead, errno) {
		return a, "", 0
	}
	return a, op, errno
}

// readNode reads one block of the device of a node, and says what is wrong with what lies behind it. The node is opened
// through a descriptor, so that the file that a raw block volume is bound on does not become busy.
func readNode(node int, dev facts.Dev) (a facts.OpenedDevice, op string, errno syscall.Errno) {
	fd, err := mount.Open(unix.AT_FDCWD, fmt.Sprintf("/proc/thread-self/fd/%d", node), unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK)
	if err != nil {
		return a, openDevice, errnoOf(err)
	}
	defer unix.Close(fd)
	size := deviceBlock
	if sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET); err == nil && sector > 0 {
		size = max(size, sector)
	}
	pause("probe/read")
	op, errno = readInto(fd, aligned(size))
	if errno == 0 {
		a.Short = shortBy(fd, dev)
	}
	return a, op, errno
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// readInto reads the first block, past every cache where fd is open for that. It leaves nothing in the
// buffer: a worker that waits for work keeps nothing of a volume.
func readInto(fd int, buf []byte) (string, syscall.Errno) {
	n, err := mount.RetryEINTR(func() (int, error) { return unix.Pread(fd, buf, 0) })
	clear(buf)
	switch {
	case errnoOf(err) == unix.EINVAL:
		return "", 0 // the device wants an alignment that it does not tell
	case err != nil:
		return facts.OpReadDevice, errnoOf(err)
	case n == 0:
		return facts.OpReadDevice, unix.ENOMEDIUM
	}
	return "", 0
}

// aligned returns a buffer at a multiple of its size, a power of two: O_DIRECT wants
// one at a multiple of the logical block size.
func aligned(size int) []byte {
	buf := make([]byte, 2*size)
	start := size - int(uintptr(unsafe.Pointer(&buf[0]))%uintptr(size))
	return buf[start : start+size]
}

// loopMajor is the block major of loop devices (Documentation/admin-guide/devices.txt).
const loopMajor = 7

// shortBy compares a loop device with the file behind it: the kernel does
// not notice that the file became shorter until it reads there. Nothing follows from
// a file that this mount namespace shows under another name or not at all.
func shortBy(fd int, dev facts.Dev) uint64 {
	if dev.Major != loopMajor {
		return 0
	}
	status, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return 0
	}
	var size uint64
	if err := ioctl(fd, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0
	}
	name, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%s/loop/backing_file", dev))
	if err != nil {
		return 0
	}
	var file unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, strings.TrimSuffix(string(name), "\n"), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &file)
	same := err == nil && file.Ino == status.Inode && unix.Mkdev(file.Dev_major, file.Dev_minor) == status.Device
	if end := status.Offset + size; same && kindOf(file) == facts.KindFile && file.Size < end {
		return end - file.Size
	}
	return 0
}
