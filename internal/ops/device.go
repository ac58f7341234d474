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

// readNode reads one block of a raw block volume. The node is opened through the
// clone, so that the file it is bound on does not become busy.
func readNode(clone int, dev facts.Dev, a *facts.OpenedDevice) (string, syscall.Errno) {
	fd, err := openDevice(fmt.Sprintf("/proc/thread-self/fd/%d", clone))
	if err != nil {
		return "open the device", errnoOf(err)
	}
	defer unix.Close(fd)
	return readDevice(fd, dev, a)
}

// readBehind reads one block of the device behind a filesystem: the filesystem
// itself answers from memory for as long as it can. It returns no error for a device
// that cannot be opened and for another one at its name: neither tells anything.
func readBehind(q ProbeQuery, a *facts.OpenedDevice) (string, syscall.Errno) {
	fd, err := openNumbered(q.Device, q.Number)
	if slices.Contains(dead, errnoOf(err)) {
		return "open the device", errnoOf(err)
	}
	if err != nil {
		return "", 0
	}
	defer unix.Close(fd)
	return readDevice(fd, q.Number, a)
}

// readDevice describes an open device, and reads one block of it.
func readDevice(fd int, dev facts.Dev, a *facts.OpenedDevice) (string, syscall.Errno) {
	describe(fd, a)
	op, errno := readBlock(fd)
	if errno == 0 {
		measureBacking(fd, dev, a)
	}
	return op, errno
}

// openNumbered opens a device if its node has the expected number; errAnother says
// that it has not. Some devices act on being opened.
func openNumbered(name string, dev facts.Dev) (int, error) {
	node, err := mount.Open(unix.AT_FDCWD, name, unix.O_PATH)
	if err != nil {
		return -1, errAnother
	}
	defer unix.Close(node)
	var st unix.Statx_t
	err = unix.Statx(node, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || dev != (facts.Dev{Major: st.Rdev_major, Minor: st.Rdev_minor}) {
		return -1, errAnother
	}
	return openDevice(fmt.Sprintf("/proc/thread-self/fd/%d", node))
}

const errAnother = unix.EINVAL

// dead are the errnos with which a device that is offline or gone refuses to be
// opened; others are about the caller.
var dead = []syscall.Errno{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO}

func openDevice(node string) (int, error) {
	return mount.Open(unix.AT_FDCWD, node, unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK)
}

// describe reads what the kernel has in memory; the device is not asked.
func describe(fd int, a *facts.OpenedDevice) {
	a.Open = true
	_ = ioctl(fd, unix.BLKGETSIZE64, unsafe.Pointer(&a.Size))
	_ = ioctl(fd, unix.BLKGETDISKSEQ, unsafe.Pointer(&a.DiskSeq))
	readOnly, err := unix.IoctlGetInt(fd, unix.BLKROGET)
	a.ReadOnly = err == nil && readOnly != 0
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// readBlock reads the first block past every cache.
func readBlock(fd int) (string, syscall.Errno) {
	size := deviceBlock
	if sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET); err == nil && sector > 0 {
		size = max(size, sector)
	}
	pause("probe/read")
	return readInto(fd, aligned(size))
}

// readInto leaves nothing in the buffer: a worker that waits for work keeps nothing
// of a volume.
func readInto(fd int, buf []byte) (string, syscall.Errno) {
	n, err := retryEINTR(func() (int, error) { return unix.Pread(fd, buf, 0) })
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

// measureBacking compares a loop device with the file behind it: the kernel does
// not notice that the file became shorter until it reads there. Nothing follows from
// a file that this mount namespace shows under another name or not at all.
func measureBacking(fd int, dev facts.Dev, a *facts.OpenedDevice) {
	if dev.Major != loopMajor {
		return
	}
	status, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return
	}
	name, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%s/loop/backing_file", dev))
	if err != nil {
		return
	}
	var file unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, strings.TrimSuffix(string(name), "\n"), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &file)
	same := err == nil && file.Ino == status.Inode && unix.Mkdev(file.Dev_major, file.Dev_minor) == status.Device
	if end := status.Offset + a.Size; same && file.Mode&unix.S_IFMT == unix.S_IFREG && file.Size < end {
		a.Short = end - file.Size
	}
}
