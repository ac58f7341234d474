package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

var kinds = []string{"ext4", "xfs", "btrfs", "tmpfs", "block"}

// TestRebind loses the published bind of a volume of every kind, heals it
// twice, and sees that the data is back and nothing else moved.
func TestRebind(t *testing.T) {
	for _, fs := range kinds {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume(fs, "vol/"+fs+" with ^ odd")
			other := n.NewVolume("ext4", "a neighbour")
			before, sum, otherSum := n.Table(), v.Sum(v.MountPoint()), other.Sum(other.MountPoint())
			n.Expect("healthy", v.Request())
			n.Expect("healthy", other.Request())
			n.SameTable(before)
			for range 2 {
				v.Unpublish()
				n.Expect("healed", v.Request(), "NotMounted", "rebind")
				n.SameTable(before)
				if got := v.Sum(v.MountPoint()); got != sum {
					t.Errorf("the data at the mount point differs: %s, want %s", got, sum)
				}
				n.Expect("healthy", v.Request())
			}
			if got := other.Sum(other.MountPoint()); got != otherSum {
				t.Error("the neighbour's data changed")
			}
			v.Writable(v.MountPoint())
		})
	}
}

// TestRebindKeepsOptions publishes read-only, and a subdirectory, over a
// read-write staged mount: each mount point gets its own options back.
func TestRebindKeepsOptions(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "options")
	p := v.MountPoint()
	v.Unpublish()
	harness.Must(t, unix.Mount(filepath.Join(v.Staging, "sub"), p, "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOEXEC|unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, ""))
	before := n.Table()
	n.Expect("healthy", v.Request())
	v.Unpublish()
	n.Expect("healed", v.Request())
	n.SameTable(before)
	if err := os.WriteFile(filepath.Join(p, "x"), nil, 0o600); err == nil {
		t.Error("the read-only mount point takes writes")
	}
	if _, err := os.Stat(filepath.Join(p, "deep", "c")); err != nil {
		t.Error(err)
	}
}

// TestRebindOfLostSubdirectory refuses when the directory the mount point showed is
// gone, or is a link by now.
func TestRebindOfLostSubdirectory(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, staging string){
		"gone": func(t *testing.T, s string) {
			harness.Must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved")))
		},
		"link": func(t *testing.T, s string) {
			harness.Must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved")))
			harness.Must(t, os.Symlink("/etc", filepath.Join(s, "sub")))
		},
		"file": func(t *testing.T, s string) {
			harness.Must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved")))
			harness.Must(t, os.WriteFile(filepath.Join(s, "sub"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume("ext4", "subdirectory")
			p := v.MountPoint()
			v.Unpublish()
			harness.Must(t, unix.Mount(filepath.Join(v.Staging, "sub"), p, "", unix.MS_BIND, ""))
			n.Expect("healthy", v.Request())
			v.Unpublish()
			spoil(t, v.Staging)
			before := n.Table()
			n.Expect("abnormal", v.Request(), "NotMounted")
			n.SameTable(before)
		})
	}
}

// TestNeverSeenHealthy does nothing for a volume without a record.
func TestNeverSeenHealthy(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "unrelated")
	v.Unpublish()
	before := n.Table()
	n.Expect("abnormal", v.Request(), "NotMounted", "never seen healthy")
	n.SameTable(before)
}

// TestModeCheck changes nothing.
func TestModeCheck(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "checked")
	n.Expect("healthy", v.Request())
	n.Stop()
	n.Args = append(n.Args, "--mode=check")
	n.Start()
	v.Unpublish()
	before := n.Table()
	n.Expect("abnormal", v.Request(), "NotMounted", "--mode=check")
	n.SameTable(before)
}
