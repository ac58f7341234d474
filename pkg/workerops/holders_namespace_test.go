package workerops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestHoldersInAnotherMountNamespace(t *testing.T) {
	v := newVolume(t, "tmpfs")
	before := whoHolds(t, true, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number].Mounts
	deep := filepath.Join(v.path, "dir")
	for name, ways := range map[string][]string{
		"open":                 {"open=" + v.file},
		"only there":           nil,
		"beneath another root": {"root=" + deep},
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

// Nobody lives in the namespace any more; a descriptor keeps it.
func TestHoldersInANamespaceWithoutProcesses(t *testing.T) {
	v := newVolume(t, "tmpfs")
	var inode uint64
	var kept *os.File
	t.Run("its only process", func(t *testing.T) {
		pid := holder(t, syscall.CLONE_NEWNS, "none=")
		inode = namespaceOf(t, pid)
		var err error
		kept, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		must(t, err)
	})
	defer kept.Close()
	if info := (namespaceInfo{}); errors.Is(ioctl(int(kept.Fd()), namespaceSelf, unsafe.Pointer(&info)), unix.ENOTTY) {
		if os.Getenv("CI") != "" {
			t.Fatal("needs Linux 6.12 or newer, and in CI a test that would skip fails")
		}
		t.Skip("this kernel does not show mount namespaces without processes (Linux 6.12 does)")
	}
	mounts := whoHolds(t, true, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number].Mounts
	if !slices.Contains(mounts, HeldMount{Namespace: inode, Path: v.path}) {
		t.Errorf("not %d among %+v", inode, mounts)
	}
}

func namespaceOf(t *testing.T, pid int) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &st))
	return st.Ino
}
