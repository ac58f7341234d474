package host

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
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

type (
	// Space is how much is left on a filesystem.
	Space = ops.Space
	// OpenedDevice is what an open block device says of itself.
	OpenedDevice = ops.DeviceAnswer
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
	// Late counts the answers in a row, this one included, that took longer than
	// Config.SlowAnswer.
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
func (a Answer) OfDevice() bool { return a.Op == ops.OpReadDevice }
