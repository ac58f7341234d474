package kernels

import (
	"slices"
	"strings"
)

// feature is what is shown on every kernel, or reported as missing there.
type feature struct {
	// form is the shortest form of the suite that shows it.
	form form
	// name is its row in docs/kernels.md.
	name string
	// tests are the tests and subtests of test/integration that show it.
	tests []string
}

// all are the kernels of the suite, the oldest first.
var all = []string{"6.1", "6.12"}

// form is how much of the suite runs.
type form int

// The short form is every heal and every condition once on the oldest kernel, and on each
// newer one the heals that its system calls change. The long form is each of them in all its
// ways, and an upgrade. What remains of test/integration asks little of the kernel and starts
// a Kubernetes API: an emulated processor needs hours for that.
const (
	changed form = iota
	short
	long
)

// shortOn is the short form on a kernel.
func shortOn(kernel string) form {
	if kernel == all[0] {
		return short
	}
	return changed
}

// features are what docs/kernels.md lists.
var features = []feature{
	{short, "rebind on ext4", []string{"TestRebind/ext4"}},
	{long, "rebind on xfs", []string{"TestRebind/xfs"}},
	{long, "rebind on btrfs", []string{"TestRebind/btrfs"}},
	{long, "rebind on tmpfs", []string{"TestRebind/tmpfs"}},
	{short, "rebind on NFS", []string{"TestNFSRebind"}},
	{short, "rebind of a raw block volume", []string{"TestRebind/block"}},
	{long, "rebind keeps options and subdirectory", []string{"TestRebindKeepsOptions"}},
	{changed, "rebind that was killed half-way", []string{"TestKilledBetweenPlaceAndFinalize"}},
	{short, "unmount-duplicate", []string{"TestKillUnmountDuplicate/server_at_unmount-duplicate/checked"}},
	{changed, "replace of a dead FUSE mount", []string{"TestReplace/shared"}},
	{short, "cover of a dead FUSE mount", []string{"TestCover"}},
	{short, "cover, in a container", []string{"TestCoverInContainer/option_rslave"}},
	{long, "unpublish after a cover", []string{"TestUnpublishWhileCovering/mount-utils_afterwards"}},
	{long, "replace of a FUSE mount that is in use", []string{"TestReplaceInUse"}},
	{long, "replace of a disk's mount", []string{"TestReplaceOfADisk/ext4"}},
	{changed, "a stale NFS mount is replaced (reported below Linux 6.5)", []string{"TestNFSStale/4.2"}},
	{long, "replace of subPaths", []string{"TestReplaceSubPaths"}},
	{changed, "unmount-dead-top", []string{"TestUnmountDeadTop"}},
	{long, "unpublish in the middle of replace", []string{"TestUnpublishWhileReplacing/mount-utils_at_finalize"}},
	{changed, "replace-in-container, FUSE", []string{"TestInContainer/private"}},
	{long, "replace-in-container, a disk", []string{"TestInContainerADisk"}},
	{long, "a stale NFS mount in a container is replaced (reported below Linux 6.5)", []string{"TestNFSInContainer/4.2"}},
	{long, "replace-in-container, subPaths", []string{"TestInContainerSubPath"}},
	{long, "replace-in-container, with mounts inside", []string{"TestInContainerNested"}},
	{long, "a pod with a user namespace is reported", []string{"TestInContainerUserNamespace"}},
	{long, "heals only what a pod wants", []string{"TestWanted"}},

	{short, "NotMounted, StagingNotMounted", []string{"TestConditions/the_staged_mount_and_the_bind_are_gone"}},
	{short, "WrongVolumeMounted", []string{"TestConditions/another_volume's_disk_staged_and_published"}},
	{short, "StackedMounts", []string{"TestConditions/bound_twice"}},
	{short, "Disconnected", []string{"TestFuse/the_daemon_is_killed"}},
	{short, "NotResponding", []string{"TestFuse/the_daemon_stands_still"}},
	{changed, "DaemonGone, DaemonStopped, DaemonHung, abort-connection", []string{"TestFuseDaemon"}},
	{short, "BackendUnreachable", []string{"TestLookup/EIO"}},
	{short, "ServerUnreachable", []string{"TestServerUnreachable"}},
	{short, "delegate to the driver, DriverReportsAbnormal", []string{"TestVendorsDriver"}},
	{changed, "restage of the only FUSE volume (StagedWithoutPod needs an API)", []string{"TestRestageAlone"}},
	{short, "StaleFileHandle", []string{"TestFuseErrno/ESTALE"}},
	{short, "PermissionDenied", []string{"TestFuseErrno/EACCES"}},
	{short, "IOError (xfs shut down)", []string{"TestConditions/xfs_shut_down"}},
	{short, "FilesystemShutdown", []string{"TestConditions/ext4_shut_down"}},
	{short, "ReadOnlyFilesystem", []string{"TestConditions/ext4_turned_read-only_after_an_error"}},
	{short, "FilesystemErrors", []string{"TestFilesystemErrors"}},
	{short, "Frozen", []string{"TestFrozen/ext4"}},
	{short, "SlowResponse", []string{"TestDiskSlow"}},
	{short, "OutOfSpace, OutOfInodes", []string{"TestFull/ext4"}},
	{short, "DeviceMissing", []string{"TestConditions/a_raw_block_volume_without_its_disk"}},
	{short, "DeviceReadError", []string{"TestDiskFails/reads_fail"}},
	{short, "DeviceReadOnly", []string{"TestDeviceWeak/ext4_it_is_write-protected"}},
	{short, "DeviceSizeChanged", []string{"TestDeviceWeak/ext4_it_shrinks"}},
	{short, "BackingFileGone", []string{"TestDeviceWeak/ext4_the_file_behind_it_is_deleted"}},
	{short, "DeviceMappingDead (a suspended mapping beneath LUKS)", []string{"TestMapping/suspended,_ext4_on_LUKS"}},
	{short, "PathsFailed", []string{"TestMultipath"}},
	{long, "a disk that refuses writes (dm-flakey)", []string{"TestMappingFailsWrites"}},
	{long, "a network block device without its server", []string{"TestNBD/ext4"}},
	{short, "NFS server, withdrawn export", []string{"TestNFSServer"}},
	{short, "NotABlockDevice", []string{"TestConditions/a_raw_block_volume_that_is_a_file"}},
	{short, "StaleInContainers", []string{"TestStaleInContainers"}},
	{short, "ContainerUnverified", []string{"TestInContainerSandboxed/Kata,_systemd"}},
	{short, "ContainerOnBareDirectory", []string{"TestContainerOnBareDirectory/ext4"}},
	{changed, "ContainerKeptPlaceholder", []string{"TestContainerStartsDuringAStep/rebind_of_ext4_at_rebind/moved"}},
	{short, "ContainerOnOldDevice", []string{"TestContainerOnOldDevice"}},
	{short, "TargetNotEmpty", []string{"TestTargetNotEmpty/ext4"}},
	{long, "names the containers that have a sick volume", []string{"TestHeld"}},
	{long, "a lost mount is noticed without a call", []string{"TestLoopObserves"}},
	{long, "a check writes nothing", []string{"TestNothingIsWritten/ext4"}},
}

// featuresOf returns the features that a form shows.
func featuresOf(f form) []feature {
	return slices.DeleteFunc(slices.Clone(features), func(one feature) bool { return one.form > f })
}

// pattern returns the -test.run that shows features.
func pattern(features []feature) string {
	var all []string
	for _, f := range features {
		for _, test := range f.tests {
			parts := strings.Split(test, "/")
			for i := range parts {
				parts[i] = "^" + parts[i] + "$"
			}
			all = append(all, strings.Join(parts, "/"))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}
