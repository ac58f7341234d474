package healer

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Status is the volume health status of CSI 1.13 that a condition amounts to.
type Status string

// The statuses, from bad to worse. No condition is Unknown: it is what remains to be said
// where a provider could not examine the volume.
const (
	Unknown      Status = "Unknown"
	Degraded     Status = "Degraded"
	Inaccessible Status = "Inaccessible"
	DataLoss     Status = "DataLoss"
)

// Severity returns a larger number the worse the status is.
func (s Status) Severity() int {
	return slices.Index([]Status{Unknown, Degraded, Inaccessible, DataLoss}, s)
}

// Reason names a condition in CamelCase. Reasons are part of the interface: messages,
// logs and docs use them, and a released one keeps its meaning.
type Reason string

// The reasons. docs/conditions.md lists them with their evidence and what a person should do.
const (
	// NotMounted: the mount point exists and nothing is mounted on it.
	NotMounted Reason = "NotMounted"
	// StagingNotMounted: the recorded staged mount is gone.
	StagingNotMounted Reason = "StagingNotMounted"
	// WrongVolumeMounted: what is mounted is not what the record or kubelet's
	// vol_data.json says belongs there.
	WrongVolumeMounted Reason = "WrongVolumeMounted"
	// StackedMounts: more than one mount is stacked on a mount point.
	StackedMounts Reason = "StackedMounts"
	// Disconnected: ENOTCONN, the daemon behind the mount is gone.
	Disconnected Reason = "Disconnected"
	// StaleFileHandle: ESTALE, the server no longer knows the root.
	StaleFileHandle Reason = "StaleFileHandle"
	// IOError: the storage answered with an error.
	IOError Reason = "IOError"
	// FilesystemShutdown: the filesystem shut itself down; stat still succeeds.
	FilesystemShutdown Reason = "FilesystemShutdown"
	// ReadOnlyFilesystem: read-only where the volume is meant to be writable.
	ReadOnlyFilesystem Reason = "ReadOnlyFilesystem"
	// PermissionDenied: the storage refused the healer, which is root.
	PermissionDenied Reason = "PermissionDenied"
	// NotResponding: no answer within the probe timeout.
	NotResponding Reason = "NotResponding"
	// ServerUnreachable: the mount failed or hangs, and no address of its server accepts
	// a connection.
	ServerUnreachable Reason = "ServerUnreachable"
	// Frozen: reads succeed, and writers wait for a thaw (FIFREEZE).
	Frozen Reason = "Frozen"
	// SlowResponse: it answered each time, and late several times in a row.
	SlowResponse Reason = "SlowResponse"
	// OutOfSpace: no block is left for an unprivileged writer.
	OutOfSpace Reason = "OutOfSpace"
	// OutOfInodes: no inode is left for an unprivileged writer.
	OutOfInodes Reason = "OutOfInodes"
	// FilesystemErrors: the filesystem counted errors since it was last healthy.
	FilesystemErrors Reason = "FilesystemErrors"
	// DeviceMissing: the block device behind the volume is gone.
	DeviceMissing Reason = "DeviceMissing"
	// DeviceReadError: a read of the device itself, past every cache, failed.
	DeviceReadError Reason = "DeviceReadError"
	// DeviceReadOnly: the device is write-protected, and the volume is not.
	DeviceReadOnly Reason = "DeviceReadOnly"
	// DeviceSizeChanged: the device, or the file behind it, has become smaller.
	DeviceSizeChanged Reason = "DeviceSizeChanged"
	// BackingFileGone: the file behind a loop device was deleted.
	BackingFileGone Reason = "BackingFileGone"
	// DeviceMappingDead: a device-mapper device is suspended, or lies on
	// devices that are gone.
	DeviceMappingDead Reason = "DeviceMappingDead"
	// PathsFailed: all paths to the device have failed.
	PathsFailed Reason = "PathsFailed"
	// StaleInContainers: the host has the volume, and a container that was started
	// before still has a filesystem instance of it that is dead.
	StaleInContainers Reason = "StaleInContainers"
	// ContainerUnverified: a container was there before the volume's filesystem
	// instance was replaced, or started while something else may have been at its pod's
	// mount point, and cannot be inspected.
	ContainerUnverified Reason = "ContainerUnverified"
	// ContainerOnBareDirectory: a container started while nothing was mounted at its
	// pod's mount point, and has the directory beneath, on the node's disk.
	ContainerOnBareDirectory Reason = "ContainerOnBareDirectory"
	// ContainerKeptPlaceholder: a container started in the middle of a step, and has
	// the volume with the attributes that its mount had at that instant.
	ContainerKeptPlaceholder Reason = "ContainerKeptPlaceholder"
	// ContainerOnOldDevice: the device of a raw block volume has another number than a
	// container was started with, which may be another disk's by now.
	ContainerOnOldDevice Reason = "ContainerOnOldDevice"
	// TargetNotEmpty: nothing is mounted at a mount point, and files lie in the directory.
	TargetNotEmpty Reason = "TargetNotEmpty"
	// StagedWithoutPod: the driver staged the volume anew, and meanwhile the last pod
	// that wanted it went.
	StagedWithoutPod Reason = "StagedWithoutPod"
	// NotABlockDevice: a raw block volume's mount point is no block device.
	NotABlockDevice Reason = "NotABlockDevice"
	// DaemonGone: no process serves a FUSE connection that is disconnected.
	DaemonGone Reason = "DaemonGone"
	// DaemonStopped: the daemon of a FUSE connection is stopped (SIGSTOP, a debugger).
	DaemonStopped Reason = "DaemonStopped"
	// DaemonHung: the daemon of a FUSE connection lives and does not answer.
	DaemonHung Reason = "DaemonHung"
	// BackendUnreachable: a FUSE daemon answers for its root, from memory, and cannot ask
	// its storage.
	BackendUnreachable Reason = "BackendUnreachable"
	// DriverReportsAbnormal: the volume's CSI driver says that something is wrong.
	DriverReportsAbnormal Reason = "DriverReportsAbnormal"
)

// EndedReasons returns those of a mount whose filesystem instance has ended, whatever
// becomes of the storage. NotResponding is not such a reason: a hung mount may recover.
func EndedReasons() []Reason {
	return []Reason{Disconnected, StaleFileHandle, IOError, FilesystemShutdown}
}

// Condition is one thing that is wrong with a volume.
type Condition struct {
	Status Status
	Reason Reason
	// MountPoint is the path at which it was seen.
	MountPoint string
	// Message names the evidence, in half a sentence without a final stop.
	Message string
	// Advice says what a person should do when nothing here heals it. SaveFirst is true where it is
	// to save files that a deleted pod takes along, whatever else is advised for the reason.
	Advice    string
	SaveFirst bool
	// Acute is true when the condition may be acted upon.
	Acute bool
	// Superblock is set for what is wrong with the whole filesystem or device, at
	// whichever mount point it was seen.
	Superblock facts.Dev
	// Ambiguous is true when it leaves open which storage the volume is: nothing is
	// recorded then, even if the volume can be used.
	Ambiguous bool
	// Provider is who failed, of ProviderFailed, and else empty.
	Provider string
}

// Disables reports whether the condition keeps the volume from being used. A degraded
// volume can be used, and may be brought to another mount point.
func (c Condition) Disables() bool { return c.Status != Degraded }

// FilesInTheWay is TargetNotEmpty at a mount point.
func FilesInTheWay(at string) Condition {
	return Condition{
		Status: Inaccessible, Reason: TargetNotEmpty, MountPoint: at,
		Message: "files lie in the directory itself, on the node's disk, and a mount would hide them",
		Advice:  "see who wrote them while nothing was mounted there; copy them into the volume if they matter, and remove them",
	}
}
