package facts

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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

// Denials are the errnos that deny access.
func Denials() []syscall.Errno {
	return []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EKEYEXPIRED, syscall.EKEYREVOKED, syscall.EKEYREJECTED, syscall.ENOKEY}
}

// MayWork reports whether a filesystem that answers with an errno may work nevertheless: the call was
// interrupted, or a FUSE daemon, which lives, denies root alone. An evicted client of CephFS, and one of SMB
// with an old password, deny access to all.
func MayWork(fsType string, e syscall.Errno) bool {
	return e == syscall.EINTR || IsFUSE(fsType) && !IsCeph(fsType) && slices.Contains(Denials(), e)
}

// ErrnoName returns the name of an errno, as in "ENOTCONN".
func ErrnoName(e syscall.Errno) string { return unix.ErrnoName(e) }

// ShutDown reports whether fsync(2) answered as on a filesystem that shut itself down
// while its device works.
func (w Write) ShutDown() bool {
	return w.Asked && !w.TimedOut && !w.Unable && w.Op == OpSync && w.Errno == syscall.EIO
}

// OpReadDevice is a probe's read of the block device itself, past every cache.
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
