package host

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

// Superblock is one mounted filesystem instance with what is known of it.
type Superblock struct {
	Dev    Dev
	FSType string
	Source string
	// ReadOnly is the superblock's own flag, whatever the mounts say.
	ReadOnly bool
	// Shutdown and EmergencyReadOnly are ext4's words for a filesystem that
	// stopped itself, or that turned read-only after an error.
	Shutdown          bool
	EmergencyReadOnly bool
	// Device is nil for a filesystem without a block device.
	Device *BlockDevice
	// Kind is the type of the root: a block device for a raw block volume.
	Kind   PathKind
	Answer Answer
	Space  Space
	// Opened is what the device said of itself when it was opened.
	Opened OpenedDevice
	// Media are the blocks of the device that cannot be read, other than the first.
	Media []MediaError
	// Errors is nil for filesystems that count none.
	Errors *FilesystemErrors
	// Btrfs is nil for other filesystems.
	Btrfs *BtrfsErrors
	// Upper has the facts of the filesystem that an overlay writes to; nil for
	// others, and where it cannot be found.
	Upper *Superblock
	// Write is the answer to a write, where one was tried.
	Write Write
}

// StateOf gives what a mount itself tells of its superblock.
func StateOf(m Mount) Superblock {
	return Superblock{
		Dev:               m.Dev,
		FSType:            m.FSType,
		Source:            m.Source,
		ReadOnly:          m.SuperReadOnly,
		Shutdown:          m.HasSuperOption("shutdown"),
		EmergencyReadOnly: m.HasSuperOption("emergency_ro"),
	}
}

// Space is how much is left on a filesystem, in its own blocks; all zero when
// it does not say.
type Space struct {
	// BlockSize is what blocks are counted in, in bytes.
	BlockSize uint64
	// Blocks are all there are, Free those that hold nothing, Available those of
	// them for an unprivileged writer.
	Blocks, Free, Available uint64
	// Files are all the inodes that there can be.
	Files, FreeFiles uint64
}

// OpenedDevice is what an open block device says of itself.
type OpenedDevice struct {
	// Open is false when it could not be opened; the rest is empty then.
	Open bool
	// Size is in bytes.
	Size     uint64
	ReadOnly bool
	DiskSeq  uint64
	// Short is by how many bytes the file behind a loop device is too short for
	// it.
	Short uint64
}

// Write is what became of a write that leaves no name behind.
type Write struct {
	Answer
	// Unable is true where the filesystem cannot be asked this way.
	Unable bool
	// Forbidden says why nothing was written where a write would have told more.
	Forbidden string
}

// Answer is what a worker's bounded touch of the storage gave.
type Answer struct {
	// Asked is false when no probe ran.
	Asked bool
	// Silent is true when there was no answer within the timeout.
	Silent bool
	// Stuck is true when not even the worker could be ended.
	Stuck bool
	// Waits are the kernel's functions in which a worker waited that got no answer,
	// innermost first; nil when unknown.
	Waits []string
	// Waiting counts the requests that a silent FUSE daemon owes.
	Waiting int
	// Writing is true when it was a write that got no answer, after a read did.
	Writing bool
	// Frozen is true when it answered, and a worker that asked for the right to
	// write waits for the thaw. Waits says where.
	Frozen bool
	// Late counts the answers in a row, this one included, that came later than
	// they should.
	Late int
	// Op and Errno name the first operation that failed; Errno 0 is success.
	Op      string
	Errno   syscall.Errno
	Elapsed time.Duration
}

// String says what a failed operation gave.
func (a Answer) String() string {
	if a.Errno == 0 {
		return "answered"
	}
	return fmt.Sprintf("%s: %s (%s)", a.Op, a.Errno.Error(), unix.ErrnoName(a.Errno))
}

// OfDevice is true when it was the device that failed, and not the filesystem
// on it.
func (a Answer) OfDevice() bool { return a.Op == workerops.OpReadDevice }

// PathKind is the type of what stands at a path.
type PathKind string

// The kinds of a path.
const (
	KindNone      PathKind = ""
	KindDirectory PathKind = "directory"
	KindFile      PathKind = "regular file"
	KindBlock     PathKind = "block device"
	KindSymlink   PathKind = "symbolic link"
	KindOther     PathKind = "special file"
)

// PathInfo is what a worker saw at the end of a path.
type PathInfo struct {
	// Looked is false when no worker answered for this path.
	Looked bool
	// Walk is the error of the walk to the last component: ELOOP for a symbolic
	// link on the way.
	Walk syscall.Errno
	// Leaf is the error of looking at the last component itself, which the
	// volume may have answered.
	Leaf syscall.Errno
	Kind PathKind
	// Link is the text of a symbolic link.
	Link string
	// Rdev is the device of a block device node.
	Rdev Dev
	// VolData is kubelet's vol_data.json for the path; nil when there is none.
	VolData *VolData
}

// Missing is true when the path was looked at and does not exist.
func (l PathInfo) Missing() bool {
	gone := func(e syscall.Errno) bool { return e == syscall.ENOENT || e == syscall.ENOTDIR }
	return l.Looked && (gone(l.Walk) || l.Walk == 0 && gone(l.Leaf))
}
