package harness_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Nothing) }

// TestFUSEDisk keeps its data over the deaths of its daemons, of which the
// target sees only the first.
func TestFUSEDisk(t *testing.T) {
	n := harness.NewNode(t)
	v, d := n.NewFUSEDisk("a disk", harness.FUSEConfig{})
	before, sum := n.Table(), v.Sum(v.MountPoint())
	for range 2 {
		d.Kill()
		if err := unix.Statfs(v.MountPoint(), &unix.Statfs_t{}); !errors.Is(err, unix.ENOTCONN) {
			t.Fatalf("the mount point of a dead daemon: %v", err)
		}
		d.Restage()
		if v.Sum(v.Staging) != sum || v.Sum(d.Backing) != sum {
			t.Error("the data is not there again")
		}
		if err := unix.Statfs(v.MountPoint(), &unix.Statfs_t{}); !errors.Is(err, unix.ENOTCONN) {
			t.Fatalf("the mount point came back by itself: %v", err)
		}
	}
	harness.Must(t, unix.Unmount(v.MountPoint(), unix.MNT_DETACH))
	v.PublishAgain()
	d.SameTable(before)
	v.Writable(v.MountPoint())
	if names := entries(t, d.Backing); !slices.Equal(names, []string{"a", "sub"}) {
		t.Errorf("the disk has %v", names)
	}
}

// TestFUSEDiskRestagedOver leaves the dead mount beneath the new one, on the
// staging path and at the mount points that share its events.
func TestFUSEDiskRestagedOver(t *testing.T) {
	n := harness.NewNode(t)
	v, d := n.NewFUSEDisk("a disk", harness.FUSEConfig{})
	sum := v.Sum(v.Staging)
	d.RestageOver()
	for _, path := range []string{v.Staging, v.MountPoint()} {
		if got := len(harness.Layers(t, path)); got != 2 || v.Sum(path) != sum {
			t.Errorf("%d mounts at %s", got, path)
		}
	}
	d.Restage()
	if got := len(harness.Layers(t, v.Staging)); got != 1 || v.Sum(v.Staging) != sum {
		t.Errorf("%d mounts at %s", got, v.Staging)
	}
}

// TestFUSEDiskEndsFrozen leaves a daemon that stays stopped to the end of the
// test.
func TestFUSEDiskEndsFrozen(t *testing.T) {
	n := harness.NewNode(t)
	_, d := n.NewFUSEDisk("a disk", harness.FUSEConfig{})
	d.Freeze()
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	harness.Must(t, err)
	var names []string
	for _, f := range found {
		names = append(names, f.Name())
	}
	return names
}
