package host

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
	// Shutdown and EmergencyReadOnly are ext4's words for a filesystem that
	// stopped itself, or that turned read-only after an error.
	Shutdown          bool
	EmergencyReadOnly bool
	// Device is nil for a filesystem without a block device.
	Device *BlockDevice
	// Kind is the type of the root: a block device for a raw block volume.
	Kind   PathKind
	Answer Answer
}

// BlockDevice is what sysfs says of the device behind a superblock or a raw
// block volume.
type BlockDevice struct {
	Dev Dev
	// Name is the kernel's name, as in "sda"; empty when sysfs does not know
	// the device any more.
	Name string
	// Missing is true when sysfs does not know the device.
	Missing bool
	// ReadOnly is the device's own write protection.
	ReadOnly bool
	// DiskSeq counts up with every disk that appears or changes its medium, so
	// it tells a reused device number within one boot (Linux 5.15); 0 when the
	// kernel has none.
	DiskSeq  uint64
	Identity Identity
}

// Identity is what stays the same when a device gets another name. A clone or
// a snapshot shares FilesystemUUID and Size with its origin.
type Identity struct {
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	Serial         string `json:"serial,omitempty"`
	WWID           string `json:"wwid,omitempty"`
	DMUUID         string `json:"dmUUID,omitempty"`
	// Partition is the number of a partition; the other parts but the UUID are
	// those of its disk.
	Partition string `json:"partition,omitempty"`
	// Size is in bytes.
	Size int64 `json:"size,omitempty"`
}

// Empty is true when nothing identifies the device.
func (i Identity) Empty() bool {
	return i.FilesystemUUID == "" && i.Serial == "" && i.WWID == "" && i.DMUUID == ""
}

// Answer is what a worker's bounded touch of the storage gave.
type Answer struct {
	// Asked is false when no probe ran.
	Asked bool
	// Silent is true when there was no answer within the timeout.
	Silent bool
	// Stuck is true when not even the worker could be ended.
	Stuck bool
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

// PathLook is what a worker saw at the end of a path.
type PathLook struct {
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
func (l PathLook) Missing() bool {
	gone := func(e syscall.Errno) bool { return e == syscall.ENOENT || e == syscall.ENOTDIR }
	return l.Looked && (gone(l.Walk) || l.Walk == 0 && gone(l.Leaf))
}
