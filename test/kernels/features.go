package kernels

import (
	"slices"
	"strings"
)

// feature is what is shown on every kernel, or reported as missing there.
type feature struct {
	// name is its row in docs/kernels.md.
	name string
	// tests are the tests and subtests of test/integration that show it.
	tests []string
}

// features lists each heal and each condition once: the short form.
var features = []feature{
	{"rebind on ext4", []string{"TestRebind/ext4"}},
	{"rebind on xfs", []string{"TestRebind/xfs"}},
	{"rebind on btrfs", []string{"TestRebind/btrfs"}},
	{"rebind on tmpfs", []string{"TestRebind/tmpfs"}},
	{"rebind on NFS", []string{"TestNFSRebind"}},
	{"rebind of a raw block volume", []string{"TestRebind/block"}},
	{"rebind keeps options and subdirectory", []string{"TestRebindKeepsOptions"}},
	{"rebind that was killed half-way", []string{"TestKilledBetweenHalves"}},
	{"unmount-duplicate", []string{"TestKillUnmountDuplicate/server_at_unmount-duplicate/checked"}},
	{"replace of a dead FUSE mount", []string{"TestReplace/shared"}},
	{"cover of a dead FUSE mount", []string{"TestCover"}},
	{"cover, in a container", []string{"TestCoverInContainer/option_rslave"}},
	{"unpublish after a cover", []string{"TestUnpublishWhileCovering/mount-utils_afterwards"}},
	{"replace of a FUSE mount that is in use", []string{"TestReplaceInUse"}},
	{"replace of a disk's mount", []string{"TestReplaceOfADisk/ext4"}},
	{"a stale NFS mount is replaced (reported below Linux 6.5)", []string{"TestNFSStale/4.2"}},
	{"replace of subPaths", []string{"TestReplaceSubPaths"}},
	{"unmount-dead-top", []string{"TestUnmountDeadTop"}},
	{"unpublish in the middle of replace", []string{"TestUnpublishWhileReplacing/mount-utils_at_finalize"}},
	{"replace-in-container, FUSE", []string{"TestInContainer/private", "TestInContainer/read-only"}},
	{"replace-in-container, a disk", []string{"TestInContainerADisk"}},
	{"a stale NFS mount in a container is replaced (reported below Linux 6.5)", []string{"TestNFSInContainer/4.2"}},
	{"replace-in-container, subPaths", []string{"TestInContainerSubPath"}},
	{"replace-in-container, with mounts inside", []string{"TestInContainerNested"}},
	{"a pod with a user namespace is reported", []string{"TestInContainerUserNamespace"}},
	{"heals only what a pod wants", []string{"TestWanted"}},

	{"NotMounted, StagingNotMounted", []string{"TestConditions/the_staged_mount_and_the_bind_are_gone"}},
	{"WrongVolumeMounted", []string{"TestConditions/another_volume's_disk_staged_and_published"}},
	{"StackedMounts", []string{"TestConditions/bound_twice"}},
	{"Disconnected", []string{"TestFuse/the_daemon_is_killed"}},
	{"NotResponding", []string{"TestFuse/the_daemon_stands_still"}},
	{"StaleFileHandle", []string{"TestFuseErrno/ESTALE"}},
	{"PermissionDenied", []string{"TestFuseErrno/EACCES"}},
	{"IOError (xfs shut down)", []string{"TestConditions/xfs_shut_down"}},
	{"FilesystemShutdown", []string{"TestConditions/ext4_shut_down"}},
	{"ReadOnlyFilesystem", []string{"TestConditions/ext4_turned_read-only_after_an_error"}},
	{"FilesystemErrors", []string{"TestFilesystemErrors/a_write_is_tried"}},
	{"Frozen", []string{"TestFrozen/ext4"}},
	{"SlowResponse", []string{"TestDiskSlow"}},
	{"OutOfSpace, OutOfInodes", []string{"TestFull/ext4"}},
	{"DeviceMissing", []string{"TestConditions/a_raw_block_volume_without_its_disk"}},
	{"DeviceReadError", []string{"TestDiskFails/reads_fail"}},
	{"DeviceMediaError", []string{"TestDiskLostButForItsFirstBlock/ext4,_reads_fail"}},
	{"DeviceReadOnly", []string{"TestDeviceWeak/ext4_it_is_write-protected"}},
	{"DeviceSizeChanged", []string{"TestDeviceWeak/ext4_it_shrinks"}},
	{"BackingFileGone", []string{"TestDeviceWeak/ext4_the_file_behind_it_is_deleted"}},
	{"DeviceMappingDead (a suspended mapping beneath LUKS)", []string{"TestMapping/suspended,_ext4_on_LUKS"}},
	{"PathsFailed", []string{"TestMultipath"}},
	{"a disk that refuses writes (dm-flakey)", []string{"TestMappingFailsWrites"}},
	{"a network block device without its server", []string{"TestNBD/ext4"}},
	{"NFS server, withdrawn export", []string{"TestNFSServer"}},
	{"NotABlockDevice", []string{"TestConditions/a_raw_block_volume_that_is_a_file"}},
	{"StaleInContainers", []string{"TestStaleInContainers"}},
	{"ContainerUnverified", []string{"TestInContainerSandboxed/Kata,_systemd"}},
	{"ContainerOnBareDirectory", []string{"TestContainerOnBareDirectory/ext4"}},
	{"ContainerKeptPlaceholder", []string{"TestContainerStartsDuringAStep/rebind_of_ext4_at_attach/moved"}},
	{"ContainerOnOldDevice", []string{"TestContainerOnOldDevice"}},
	{"TargetNotEmpty", []string{"TestTargetNotEmpty/ext4"}},
	{"names who holds a sick volume", []string{"TestHeld"}},
	{"a check writes nothing", []string{"TestNothingIsWritten/ext4"}},
}

// pattern returns the -test.run of the short form.
func pattern() string {
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
