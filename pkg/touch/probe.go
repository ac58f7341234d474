package touch

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeQuery asks for one bounded touch of the superblock mounted at a path.
type ProbeQuery struct {
	Path string
	// Want is the mount that the mount table showed there.
	Want MountRef
	// UUID asks for the filesystem UUID; only block filesystems have one.
	UUID bool
	// Source is the mount's source when that may be a device node whose number
	// mountinfo does not show (btrfs).
	Source string
	// Device is the node of the block device to read a block of, DeviceMajor
	// and DeviceMinor its number; empty to read none.
	Device                   string
	DeviceMajor, DeviceMinor uint32
}

// ProbeAnswer is what the storage said. An errno is an answer, not an error.
type ProbeAnswer struct {
	// Changed is true when something else is mounted there by now; the rest is
	// then empty.
	Changed bool
	// Op and Errno name the first operation that failed.
	Op    string
	Errno syscall.Errno
	// Mode is st_mode of the root.
	Mode uint32
	// Major and Minor are the device of a block device node at the path, or of
	// Source.
	Major, Minor uint32
	// UUID is the filesystem's, empty when it has none or does not tell.
	UUID string
	// SourceGone is true when Source does not exist.
	SourceGone bool
	Elapsed    time.Duration
}

// probe touches a detached clone of the mount and not the mount itself, so
// that kubelet's umount never finds it busy because of us.
func probe(q ProbeQuery) (a ProbeAnswer) {
	start := time.Now()
	defer func() { a.Elapsed = time.Since(start) }()
	l, err := openLeaf(q.Path)
	if err != nil {
		return ProbeAnswer{Op: "resolve", Errno: errnoOf(err)}
	}
	defer l.close()
	clone, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(l.dir, l.name, unix.OPEN_TREE_CLONE|
			unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err != nil {
		return ProbeAnswer{Op: "open_tree", Errno: errnoOf(err)}
	}
	a = l.probeClone(clone, q)
	_ = unix.Close(clone)
	// The clone is gone by now: a device that never answers does not keep the
	// filesystem after kubelet's umount.
	if a.Errno == 0 && !a.Changed && q.Device != "" {
		a.Op, a.Errno = readBehind(q)
	}
	if q.Source != "" {
		a.seeSource(q.Source)
	}
	return a
}

func (l leaf) probeClone(clone int, q ProbeQuery) (a ProbeAnswer) {
	// After the clone was made: what stands there now is what was cloned.
	if l.changed(q.Want) {
		return ProbeAnswer{Changed: true}
	}
	var st unix.Statx_t
	if err := unix.Statx(clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return ProbeAnswer{Op: "statx", Errno: errnoOf(err)}
	}
	a.Mode = uint32(st.Mode)
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		a.Major, a.Minor = st.Rdev_major, st.Rdev_minor
		a.Op, a.Errno = readDevice(clone)
	case unix.S_IFDIR:
		a.Op, a.Errno, a.UUID = openRoot(clone, q.UUID)
	}
	return a
}

// seeSource looks at the device node that a mount names, without opening it.
func (a *ProbeAnswer) seeSource(source string) {
	var dev unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, source, 0, unix.STATX_TYPE, &dev)
	switch {
	case err == nil && dev.Mode&unix.S_IFMT == unix.S_IFBLK:
		a.Major, a.Minor = dev.Rdev_major, dev.Rdev_minor
	case errnoOf(err) == unix.ENOENT:
		a.SourceGone = true
	}
}

// changed is true when another mount than the expected one is topmost. A
// filesystem that does not tell leaves it open.
func (l leaf) changed(want MountRef) bool {
	if want.ID != 0 {
		id := uniqueID(l.dir, l.name, 0)
		return id != 0 && id != want.ID
	}
	fd, now, err := l.top()
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return !now.Same(want)
}

// openRoot opens the root directory, which a daemon or a server behind it has
// to answer, and never reads it: a check costs the same for any size.
func openRoot(clone int, wantUUID bool) (string, syscall.Errno, string) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(clone, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return "open", errnoOf(err), ""
	}
	defer unix.Close(fd)
	pause("probe/opened")
	if !wantUUID {
		return "", 0, ""
	}
	return "", 0, filesystemUUID(fd)
}

// deviceBlock is what a probe reads of a device, in bytes; more where a logical
// block is larger.
const deviceBlock = 4096

// readDevice reads one block of a raw block volume. The node is opened through
// the clone, so that not even the file it is bound on gets busy.
func readDevice(clone int) (string, syscall.Errno) {
	fd, err := openDevice(fmt.Sprintf("/proc/thread-self/fd/%d", clone))
	if err != nil {
		return "open the device", errnoOf(err)
	}
	defer unix.Close(fd)
	return readBlock(fd)
}

// readBehind reads one block of the device behind a filesystem: the filesystem
// itself answers from memory for as long as it can. A device that cannot be
// opened, or another one at its name, says nothing.
func readBehind(q ProbeQuery) (string, syscall.Errno) {
	node, err := retryEINTR(func() (int, error) { return unix.Open(q.Device, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", 0
	}
	defer unix.Close(node)
	// Looked at before it is opened: some devices act on being opened.
	var st unix.Statx_t
	err = unix.Statx(node, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev_major != q.DeviceMajor || st.Rdev_minor != q.DeviceMinor {
		return "", 0
	}
	fd, err := openDevice(fmt.Sprintf("/proc/thread-self/fd/%d", node))
	if err != nil {
		return "", 0
	}
	defer unix.Close(fd)
	return readBlock(fd)
}

func openDevice(node string) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Open(node, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
}

// readBlock reads one block past every cache.
func readBlock(fd int) (string, syscall.Errno) {
	size := deviceBlock
	if sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET); err == nil && sector > size {
		size = sector
	}
	// O_DIRECT wants an aligned buffer; an anonymous mapping is page-aligned.
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "mmap", errnoOf(err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	pause("probe/read")
	n, err := retryEINTR(func() (int, error) { return unix.Pread(fd, buf, 0) })
	switch {
	case errnoOf(err) == unix.EINVAL:
		return "", 0 // an alignment that the device wants and does not tell
	case err != nil:
		return "read the device", errnoOf(err)
	case n == 0:
		return "read the device", unix.ENOMEDIUM
	}
	return "", 0
}
