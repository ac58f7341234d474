package harness

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Mounts returns the mount table of a process, "self" for the test's own.
func Mounts(t testing.TB, process string) []facts.Mount {
	t.Helper()
	f, err := os.Open("/proc/" + process + "/mountinfo")
	Must(t, err)
	defer f.Close()
	mounts, err := mount.Parse(f)
	Must(t, err)
	return mounts
}

// Table returns the mount table beneath the node's directory, one line for each
// mount, without the numbers that change with every mount.
func (n *Node) Table() []string {
	n.T.Helper()
	var lines []string
	for _, m := range Mounts(n.T, "self") {
		if strings.HasPrefix(m.Path, n.Dir) {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s %v shared=%v",
				m.Path, m.Root, m.Dev, m.Attr, m.FSType, m.Source, m.SuperOptions, m.Propagation.Shared != 0))
		}
	}
	sort.Strings(lines)
	return lines
}

// SameTable fails the test when the mount table is not as it was.
func (n *Node) SameTable(before []string) {
	n.T.Helper()
	if after := n.Table(); !slices.Equal(before, after) {
		n.T.Fatalf("the mount table changed\nbefore:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// unmountBeneath unmounts everything that a test left mounted, topmost first.
func unmountBeneath(t testing.TB, dir string) {
	t.Helper()
	for range 10 {
		left := 0
		for _, m := range slices.Backward(Mounts(t, "self")) {
			if strings.HasPrefix(m.Path, dir) {
				left++
				_ = unix.Unmount(m.Path, unix.MNT_DETACH)
			}
		}
		if left == 0 {
			return
		}
	}
	t.Errorf("mounts are left beneath %s", dir)
}

// MountID returns the unique id of the mount at a path.
func MountID(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Statx_t
	Must(t, unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &st))
	return st.Mnt_id
}
