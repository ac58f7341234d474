package healer

// Reasons returns all reasons of this package.
func Reasons() []Reason {
	return []Reason{
		NotMounted,
		StagingNotMounted,
		WrongVolumeMounted,
		StackedMounts,
		Disconnected,
		StaleFileHandle,
		IOError,
		FilesystemShutdown,
		ReadOnlyFilesystem,
		PermissionDenied,
		NotResponding,
		ServerUnreachable,
		Frozen,
		SlowResponse,
		OutOfSpace,
		OutOfInodes,
		FilesystemErrors,
		DeviceMissing,
		DeviceReadError,
		DeviceReadOnly,
		DeviceSizeChanged,
		BackingFileGone,
		DeviceMappingDead,
		PathsFailed,
		NotABlockDevice,
		StaleInContainers,
		StagedWithoutPod,
		ContainerUnverified,
		ContainerOnBareDirectory,
		ContainerKeptPlaceholder,
		ContainerOnOldDevice,
		TargetNotEmpty,
		DaemonGone,
		DaemonStopped,
		DaemonHung,
		BackendUnreachable,
		DriverReportsAbnormal,
	}
}

// EndedReasons returns those of a mount whose filesystem instance has ended, whatever
// becomes of the storage. NotResponding is not such a reason: a hung mount may recover.
func EndedReasons() []Reason {
	return []Reason{Disconnected, StaleFileHandle, IOError, FilesystemShutdown}
}
