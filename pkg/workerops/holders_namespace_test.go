package workerops

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHoldersInAnotherMountNamespace(t *testing.T) {
	v := newVolume(t, "tmpfs")
	before := whoHolds(t, true, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number].Mounts
	for name, ways := range map[string][]string{
		"open":       {"open=" + v.file},
		"only there": nil,
	} {
		t.Run(name, func(t *testing.T) {
			pid := holder(t, syscall.CLONE_NEWNS, append(ways, "none=")...)
			inode := namespaceOf(t, pid)
			for name, follow := range bothWays {
				held := whoHolds(t, follow, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number]
				at := slices.IndexFunc(held.Mounts, func(m HeldMount) bool { return m.Namespace == inode })
				if len(held.Mounts) != len(before)+1 || at < 0 || held.Mounts[at].PID != pid || held.Mounts[at].Path != v.path {
					t.Errorf("%s: %+v", name, held.Mounts)
				}
				if (howBy(held, pid) != 0) != (ways != nil) {
					t.Errorf("%s: %+v", name, held.Processes)
				}
			}
		})
	}
}

// The only process there has a directory as its root, and shows no mount outside of it.
func TestHoldersBeneathAnotherRoot(t *testing.T) {
	v := newVolume(t, "tmpfs")
	pid := holder(t, syscall.CLONE_NEWNS, "root="+filepath.Join(v.path, "dir"))
	a := scanAll(t, true, HoldersQuery{Superblocks: []Number{v.number}})
	if !a.Cut || howBy(a.Superblocks[v.number], pid) != HowRoot {
		t.Errorf("%+v", a)
	}
}

func namespaceOf(t *testing.T, pid int) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &st))
	return st.Ino
}
