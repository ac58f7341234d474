package workerops

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// mountsOf returns the mounts of a superblock as the abort of its connection sees them.
func mountsOf(t *testing.T, dev mount.Dev) (found []namespaceMount, cut bool) {
	t.Helper()
	proc, err := openProcfs()
	must(t, err)
	defer proc.close()
	s := newScan(proc)
	s.owners, err = newOwners()
	must(t, err)
	s.end = time.Now().Add(time.Minute)
	pids, err := s.whoRuns()
	must(t, err)
	s.readProcesses(pids)
	found = s.mountsOf(dev)
	return found, s.cut
}

func TestMountsInAnotherMountNamespace(t *testing.T) {
	v := newVolume(t, "tmpfs")
	before, _ := mountsOf(t, v.number)
	pid := holder(t, syscall.CLONE_NEWNS, "none=")
	found, cut := mountsOf(t, v.number)
	if len(found) != len(before)+1 || !slices.Contains(found, namespaceMount{namespaceOf(t, pid), v.path, pid}) || cut {
		t.Errorf("%+v, cut: %v", found, cut)
	}
}

// The only process there has a directory as its root, and shows no mount outside of it.
func TestMountsBeneathAnotherRoot(t *testing.T) {
	v := newVolume(t, "tmpfs")
	holder(t, syscall.CLONE_NEWNS, "root="+filepath.Join(v.path, "dir"))
	if found, cut := mountsOf(t, v.number); !cut {
		t.Errorf("a part passes for the whole: %+v", found)
	}
}

func namespaceOf(t *testing.T, pid int) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &st))
	return st.Ino
}
