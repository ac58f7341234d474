package ops

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ProbeQuery asks for one bounded probe of the superblock mounted at a path.
type ProbeQuery struct {
	Path string
	// Superblock is the number of the expected one, as files on it show it; zero when
	// that is not known (btrfs, CephFS). One with a major number is a filesystem on a disk.
	Superblock facts.Dev
	// Around clones the directory above the mount point instead of the mount.
	Around bool
	// Root asks for the root directory to be opened: a daemon or a server has
	// to answer that. A filesystem on a disk answers from memory.
	Root bool
	// Source is the mount's source when that may be a device node whose number
	// mountinfo does not show (btrfs).
	Source string
	// Device is the node of the block device to read a block of, which has the number
	// Superblock; empty to read none.
	Device string
	// Thawed asks the kernel for the right to write, which it grants at once unless
	// the filesystem is frozen; then the worker waits for the thaw.
	// Only for filesystem types without a handler for unknown attributes.
	Thawed bool
}

// ProbeAnswer is the storage's answer. An errno is an answer, not an error.
type ProbeAnswer struct {
	// Changed is true when another filesystem is mounted there by now, or none; the
	// rest is then empty.
	Changed bool
	// Answer is that of the storage. Elapsed does not include the wait for a thaw.
	facts.Answer
	// Kind is the type of the root.
	Kind facts.PathKind
	facts.ProbeFacts
	// waited is how long the answer to Thawed took.
	waited time.Duration
	// devices is how many a btrfs has.
	devices uint64
}

// probe asks a detached clone of the mount and not the mount itself, so that kubelet's umount never
// finds the mount busy because of us: where the clone is made of the directory above (Around), not
// even for the instant of a path walk to it.
//
// Another superblock is recognized by its device number. Whether the clone is of the expected mount
// the caller finds out: it is if the mount table is the same before and after.
func probe(q ProbeQuery) (a ProbeAnswer) {
	start := time.Now()
	defer func() { a.Asked, a.Elapsed = true, time.Since(start)-a.waited }()
	// The device is read first, while there is no clone: a worker that waits for a device that
	// never answers then does not keep the filesystem in use after kubelet's umount. And the device
	// has been read when the worker waits for a thaw.
	var device facts.OpenedDevice
	var failed string
	var errno syscall.Errno
	if q.Device != "" {
		device, failed, errno = readBehind(q.Device, q.Superblock)
	}
	clone, op, err := q.clone()
	if op == opClone && errnoOf(err) == unix.EINVAL {
		return ProbeAnswer{Changed: true} // it was just unmounted
	}
	if err != nil {
		return ProbeAnswer{Answer: answer(op, err)}
	}
	a.probeClone(clone, q)
	_ = unix.Close(clone)
	switch {
	case a.Changed || q.Device == "":
	case a.Errno == 0:
		a.Device, a.Op, a.Errno = device, failed, errno
	default:
		a.Device.Errno = errno
	}
	if q.Source != "" {
		a.readSource(q.Source)
	}
	return a
}

// answer is that of an operation, which failed if there is an error.
func answer(op string, err error) facts.Answer { return facts.Answer{Op: op, Errno: errnoOf(err)} }

// opResolve is the operation that fails on the way to the mount point, opClone the one that fails where
// nothing is mounted.
const (
	opResolve = "resolve"
	opClone   = "open_tree"
)

// clone opens what is mounted at the path in a detached clone. op is what failed.
//
// Around is a clone of the directory above, with all that is mounted beneath that: a
// walk to the mount itself, however short, would make its umount fail with EBUSY in that
// instant. The clone is made private before it is walked: an umount that propagates to
// it would find it busy, too. The kernel visits each mount beside it for that.
func (q ProbeQuery) clone() (fd int, op string, err error) {
	l, err := openTarget(q.Path)
	if err != nil {
		return -1, opResolve, err
	}
	defer l.close()
	if !q.Around {
		fd, err = mount.RetryEINTR(func() (int, error) {
			return unix.OpenTree(l.dir, l.name, unix.OPEN_TREE_CLONE|
				unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
		})
		return fd, opClone, err
	}
	above, err := mount.CloneTree(l.dir)
	if err != nil {
		return -1, opClone, err
	}
	// The descriptor that is opened in it keeps what it needs.
	defer unix.Close(above)
	err = unix.MountSetattr(above, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return -1, "mount_setattr", err
	}
	fd, err = mount.Open(above, l.name, unix.O_PATH|unix.O_NOFOLLOW)
	return fd, "open", err
}

func (a *ProbeAnswer) probeClone(clone int, q ProbeQuery) {
	var st unix.Statx_t
	if err := unix.Statx(clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID_UNIQUE, &st); err != nil {
		a.Op, a.Errno = "statx", errnoOf(err)
		return
	}
	if !q.Superblock.Zero() && q.Superblock != (facts.Dev{Major: st.Dev_major, Minor: st.Dev_minor}) {
		a.Changed = true
		return
	}
	if q.Source != "" { // the number of a btrfs cannot be compared
		if fs, err := statfs(clone); err == nil && fs.Type != unix.BTRFS_SUPER_MAGIC {
			a.Changed = true
			return
		}
	}
	if st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		a.Newest = st.Mnt_id
	}
	a.Kind = kindOf(st)
	switch a.Kind {
	case facts.KindBlock:
		a.Rdev = facts.Dev{Major: st.Rdev_major, Minor: st.Rdev_minor}
		a.Device, a.Op, a.Errno = readNode(clone, a.Rdev)
		return
	case facts.KindDirectory:
		if q.Root || q.Superblock.Major != 0 || q.Source != "" || q.Thawed {
			a.openRoot(clone, q)
		}
	}
	if a.Errno == 0 {
		if fs, err := statfs(clone); err == nil { // many daemons do not implement it
			a.Space = facts.Space{Blocks: fs.Blocks, Available: fs.Bavail, Files: fs.Files, FreeFiles: fs.Ffree}
		}
	}
}

func statfs(fd int) (st unix.Statfs_t, err error) {
	_, err = mount.RetryEINTR(func() (int, error) { return 0, unix.Fstatfs(fd, &st) })
	return st, err
}

// readSource reads the number of the device node that a mount names without showing its device. It
// reads the device itself if it is the filesystem's only one: one of several may fail without the
// filesystem.
func (a *ProbeAnswer) readSource(source string) {
	var dev unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, source, 0, unix.STATX_TYPE, &dev)
	a.SourceGone = errnoOf(err) == unix.ENOENT
	if err != nil || kindOf(dev) != facts.KindBlock {
		return
	}
	a.Rdev = facts.Dev{Major: dev.Rdev_major, Minor: dev.Rdev_minor}
	if !a.Changed && a.Errno == 0 && a.devices == 1 {
		a.Device, a.Op, a.Errno = readBehind(source, a.Rdev)
	}
}

// openRoot opens the root directory, which a daemon or a server behind it has
// to answer, and never reads it: a check costs the same for any size.
func (a *ProbeAnswer) openRoot(clone int, q ProbeQuery) {
	fd, err := mount.Open(clone, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		a.Op, a.Errno = "open", errnoOf(err)
		return
	}
	defer unix.Close(fd)
	pause("probe/opened")
	if q.Superblock.Major != 0 || q.Source != "" {
		a.UUID = filesystemUUID(fd)
	}
	if q.Source != "" {
		a.devices = btrfsDevices(fd)
	}
	if q.Thawed {
		// The right to write is asked for and not used: the attribute is in no namespace
		// that the filesystem has a handler for, so the kernel answers EOPNOTSUPP without
		// calling the filesystem (vfs_removexattr in fs/xattr.c, Linux 6.18). No errno but
		// EROFS tells anything: an immutable root gives EPERM, for example.
		start := time.Now()
		err := unix.Fremovexattr(fd, "x.y")
		a.ReadOnly, a.waited = errnoOf(err) == unix.EROFS, time.Since(start)
	}
}
