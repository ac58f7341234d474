package facts

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Superblock is one mounted filesystem instance with what is known of it.
type Superblock struct {
	Dev    Dev
	FSType string
	Source string
	// ReadOnly is the superblock's own flag, whatever the mounts say.
	ReadOnly bool
	// Shutdown and EmergencyReadOnly are ext4's super options of a filesystem that
	// shut itself down, or that turned read-only after an error.
	Shutdown          bool
	EmergencyReadOnly bool
	// Device is nil for a filesystem without a block device.
	Device *BlockDevice
	// Kind is the type of the root: a block device for a raw block volume.
	Kind   PathKind
	Answer Answer
	Space  Space
	// Opened is what the open device says of itself.
	Opened OpenedDevice
	// Errors is nil for filesystems other than ext4.
	Errors *FilesystemErrors
	// Upper has the facts of the filesystem that an overlay writes to; nil for
	// others, and where it cannot be found.
	Upper *Superblock
	// Write is the result of a write, where one was tried.
	Write Write
	// Lookup is what a FUSE daemon last answered for a name that cannot exist.
	Lookup Lookup
}

// StateOf returns what a mount itself tells of its superblock.
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

// Write is the result of a write that leaves no name behind.
type Write struct {
	Answer
	// Unable is true where the filesystem cannot be asked this way.
	Unable bool
	// Forbidden says why nothing was written where a write would have told more.
	Forbidden string
}

// Answer is the result of a worker's bounded probe of the storage.
type Answer struct {
	// Asked is false when no probe ran.
	Asked bool
	// TimedOut is true when there was no answer within the timeout.
	TimedOut bool
	// Stuck is true when the worker could not be ended either.
	Stuck bool
	// Outstanding is when the call began whose worker could not be ended and still waits:
	// as long as it stays the same, one request has no answer. Zero for none, and for
	// unknown.
	Outstanding time.Time
	// Waits are the functions of the kernel in which a worker without an answer waited,
	// innermost first; nil when unknown.
	Waits []string
	// Writing is true when it was a write that got no answer, after a read did.
	Writing bool
	// Frozen is true when it answered, and a worker that asked for the right to
	// write waits for the thaw. Waits says where.
	Frozen bool
	// Late counts the answers in a row, this one included, that took longer than the
	// operator calls slow.
	Late int
	// Op and Errno name the first operation that failed; Errno 0 is success.
	Op      string
	Errno   syscall.Errno
	Elapsed time.Duration
}

// String returns the operation that failed and its error.
func (a Answer) String() string {
	if a.Errno == 0 {
		return "answered"
	}
	return fmt.Sprintf("%s: %s (%s)", a.Op, a.Errno.Error(), ErrnoName(a.Errno))
}

// ErrnoName returns the name of an errno, as in "ENOTCONN".
func ErrnoName(e syscall.Errno) string { return unix.ErrnoName(e) }

// OfDevice reports whether it was the device that failed, and not the filesystem on it.
func (a Answer) OfDevice() bool { return a.Op == OpReadDevice }

// ShutDown reports whether fsync(2) answered as on a filesystem that shut itself down
// while its device works.
func (w Write) ShutDown() bool {
	return w.Asked && !w.TimedOut && !w.Unable && w.Op == OpSync && w.Errno == syscall.EIO
}

// OpReadDevice is the operation that fails when the device itself does.
const OpReadDevice = "read the device"

// OpSync is the operation that fails on a filesystem that has shut itself down.
const OpSync = "fsync"

// ProbeFacts are what a probe found out beside whether the storage answers.
type ProbeFacts struct {
	// Rdev is the device of a block device node at the path, or of the mount's source,
	// where the mount does not show its device (btrfs).
	Rdev Dev
	// Newest is the unique id of the clone, the highest in the kernel when it was
	// made: ids only grow, in all mount namespaces together. 0 below Linux 6.8.
	Newest uint64
	// UUID is the filesystem's, empty when it has none or does not tell.
	UUID string
	// SourceGone is true when the device node that the mount names is not there.
	SourceGone bool
	Space      Space
	// Device is what the open block device says of itself.
	Device OpenedDevice
	// ReadOnly is true when the kernel refused the right to write with EROFS, for
	// the mount or for the superblock.
	ReadOnly bool
}

// Space is the result of statfs(2); all zero when it fails.
type Space struct {
	// Blocks are all there are, Available those that hold nothing and are for an
	// unprivileged writer.
	Blocks, Available uint64
	Files, FreeFiles  uint64
}

// Works reports whether the superblock answered, and did not shut down.
func (sb Superblock) Works() bool {
	return sb.Answer.Asked && !sb.Answer.TimedOut && sb.Answer.Errno == 0 && !sb.Shutdown
}
