package healer

import "slices"

// Scope is what a condition with a reason concerns.
type Scope int

// The scopes, from narrow to wide.
const (
	// ScopeMount is how one volume is mounted, and not what it lies on.
	ScopeMount Scope = iota + 1
	// ScopeFilesystem is one filesystem, and no other one of the same server or device.
	ScopeFilesystem
	// ScopeBackend is what several volumes may lie on: a server, a device, a pool.
	ScopeBackend
)

// reasonInfo is what the rest of the code has to know of a reason.
type reasonInfo struct {
	reason Reason
	scope  Scope
	// ended is true where the filesystem instance of the mount has ended, whatever
	// becomes of the storage. NotResponding is not such a reason: a hung mount may
	// recover.
	ended bool
}

// reasons has every reason of this package.
var reasons = []reasonInfo{
	{reason: NotMounted, scope: ScopeMount},
	{reason: StagingNotMounted, scope: ScopeMount},
	{reason: WrongVolumeMounted, scope: ScopeMount},
	{reason: StackedMounts, scope: ScopeMount},
	{reason: Disconnected, scope: ScopeBackend, ended: true},
	{reason: StaleFileHandle, scope: ScopeBackend, ended: true},
	{reason: IOError, scope: ScopeBackend, ended: true},
	{reason: FilesystemShutdown, scope: ScopeBackend, ended: true},
	{reason: ReadOnlyFilesystem, scope: ScopeMount},
	{reason: PermissionDenied, scope: ScopeBackend},
	{reason: NotResponding, scope: ScopeBackend},
	{reason: ServerUnreachable, scope: ScopeBackend},
	{reason: Frozen, scope: ScopeBackend},
	{reason: SlowResponse, scope: ScopeBackend},
	{reason: OutOfSpace, scope: ScopeFilesystem},
	{reason: OutOfInodes, scope: ScopeFilesystem},
	{reason: FilesystemErrors, scope: ScopeFilesystem},
	{reason: DeviceMissing, scope: ScopeBackend},
	{reason: DeviceReadError, scope: ScopeBackend},
	{reason: DeviceMediaError, scope: ScopeBackend},
	{reason: DeviceReadOnly, scope: ScopeBackend},
	{reason: DeviceSizeChanged, scope: ScopeBackend},
	{reason: BackingFileGone, scope: ScopeBackend},
	{reason: DeviceMappingDead, scope: ScopeBackend},
	{reason: PathsFailed, scope: ScopeBackend},
	{reason: NotABlockDevice, scope: ScopeMount},
	{reason: StaleInContainers, scope: ScopeMount},
	{reason: StagedWithoutPod, scope: ScopeMount},
	{reason: ContainerUnverified, scope: ScopeMount},
	{reason: ContainerOnBareDirectory, scope: ScopeMount},
	{reason: ContainerKeptPlaceholder, scope: ScopeMount},
	{reason: ContainerOnOldDevice, scope: ScopeMount},
	{reason: TargetNotEmpty, scope: ScopeMount},
	{reason: DaemonGone, scope: ScopeFilesystem},
	{reason: DaemonStopped, scope: ScopeFilesystem},
	{reason: DaemonHung, scope: ScopeFilesystem},
}

// Reasons returns all reasons of this package.
func Reasons() []Reason { return reasonsIf(func(reasonInfo) bool { return true }) }

// EndedReasons returns those of a mount whose filesystem instance has ended.
func EndedReasons() []Reason { return reasonsIf(func(i reasonInfo) bool { return i.ended }) }

func reasonsIf(wanted func(reasonInfo) bool) (found []Reason) {
	for _, i := range reasons {
		if wanted(i) {
			found = append(found, i.reason)
		}
	}
	return found
}

// Scope returns what a condition with this reason concerns: ScopeBackend for a reason
// that only its provider knows.
func (r Reason) Scope() Scope {
	if at := slices.IndexFunc(reasons, func(i reasonInfo) bool { return i.reason == r }); at >= 0 {
		return reasons[at].scope
	}
	return ScopeBackend
}
