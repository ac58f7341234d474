package workerops

import (
	"testing"

	"golang.org/x/sys/unix"
)

// After a lazy umount the superblock is in no mount table, and held.
func TestHoldersOfALazilyUnmountedVolume(t *testing.T) {
	v := newVolume(t, "ext4")
	open := holder(t, 0, "open="+v.file)
	cwd := holder(t, 0, "cwd="+v.path)
	must(t, unix.Unmount(v.path, unix.MNT_DETACH))
	q := HoldersQuery{Superblocks: []Number{v.number}}
	a := whoHolds(t, true, q)
	held := a.Superblocks[v.number]
	if howBy(held, open) != HowFile|HowDetached || howBy(held, cwd) != HowWorkingDirectory|HowDetached || len(held.Mounts) != 0 {
		t.Errorf("through links: %+v", a)
	}
	a = whoHolds(t, false, q)
	held = a.Superblocks[v.number]
	if len(held.Processes) != 0 || a.Unknown == 0 {
		t.Errorf("by procfs: %+v", a)
	}
}

// The files of btrfs show a number that names no superblock.
func TestHoldersOfALazilyUnmountedBtrfs(t *testing.T) {
	v := newVolume(t, "btrfs")
	open := holder(t, 0, "open="+v.file)
	must(t, unix.Unmount(v.path, unix.MNT_DETACH))
	for name, follow := range bothWays {
		a := whoHolds(t, follow, HoldersQuery{Superblocks: []Number{v.number}})
		held := a.Superblocks[v.number]
		if howBy(held, open) != 0 || a.Unknown == 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
