package facts

import "syscall"

// PathFacts are what a walk to a path met.
type PathFacts struct {
	// ParentErrno is the error of the walk to the last component: ELOOP for a symbolic
	// link on the way.
	ParentErrno syscall.Errno
	// Errno is the error of statx(2) of the last component itself, which the volume may
	// have answered.
	Errno syscall.Errno
	// Rdev is the device of a block device node.
	Rdev Dev
	// Link is the text of a symbolic link.
	Link string
	// NotEmpty is true for a target on which nothing is mounted, and where files lie in the
	// directory itself, on the node's disk, or the file for a block device has content.
	NotEmpty bool
}

// PathInfo is what a worker found at the end of a path.
type PathInfo struct {
	// Inspected is false when no worker answered for this path.
	Inspected bool
	PathFacts
	Kind PathKind
	// VolData is kubelet's vol_data.json for the path; nil when there is none.
	VolData *VolData
	// VolDataErr is why a vol_data.json that is there tells nothing; nil otherwise.
	VolDataErr error
}

// Missing reports whether the path was inspected and does not exist.
func (p PathInfo) Missing() bool {
	gone := func(e syscall.Errno) bool { return e == syscall.ENOENT || e == syscall.ENOTDIR }
	return p.Inspected && (gone(p.ParentErrno) || p.ParentErrno == 0 && gone(p.Errno))
}

// PathKind is the type of the file at a path.
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

// VolData is the part of kubelet's vol_data.json that identifies a volume (kubelet's
// pkg/volume/csi/csi_plugin.go).
type VolData struct {
	DriverName   string `json:"driverName"`
	VolumeHandle string `json:"volumeHandle"`
	// Lifecycle is Persistent, or Ephemeral for a pod's inline volume; kubelet writes it into
	// a pod's file only.
	Lifecycle string `json:"volumeLifecycleMode"`
}
