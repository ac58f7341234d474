package workerops

import (
	"maps"
	"testing"
	"time"

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

// A mount that is made while the tables are read is in none of them, and not detached.
func TestHoldersOfAMountMadeDuringTheScan(t *testing.T) {
	proc, err := openProcfs()
	must(t, err)
	defer proc.close()
	for name, made := range map[string]How{"before the scan": HowDetached, "during the scan": 0} {
		before := newestMount(proc)
		v := newVolume(t, "tmpfs")
		open := holder(t, 0, "open="+v.file)
		s := newScan(proc, HoldersQuery{Superblocks: []Number{v.number}})
		if s.newest = before; before == 0 || !s.followLinks {
			t.Skip("no unique mount ids, or filesystems whose magic links are not followed")
		}
		if made != 0 {
			s.newest = newestMount(proc)
		}
		s.end = time.Now().Add(time.Minute)
		s.readProcesses([]int{open})
		s.readMountTables()
		maps.DeleteFunc(s.mounts, func(_ int, m mounted) bool { return m.dev == v.number }) // as if the tables were read earlier
		s.readFiles()
		if how := s.found[open].superblocks[v.number]; how != HowFile|made {
			t.Errorf("%s: %b", name, how)
		}
	}
}
