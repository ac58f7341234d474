package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

var kinds = []string{"ext4", "xfs", "btrfs", "tmpfs", "block"}

// TestRebind loses the published bind of a volume of every kind, heals it
// twice, and sees that the data is back and nothing else moved.
func TestRebind(t *testing.T) {
	for _, fs := range kinds {
		t.Run(fs, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume(fs, "vol/"+fs+" with ^ odd")
			other := n.newVolume("ext4", "a neighbour")
			before, sum, otherSum := n.table(), v.sum(v.place(podUID)), other.sum(other.place(podUID))
			n.expect("healthy", v.request())
			n.expect("healthy", other.request())
			n.sameTable(before)
			for range 2 {
				v.unpublish()
				n.expect("healed", v.request(), "NotMounted", "rebind")
				n.sameTable(before)
				if got := v.sum(v.place(podUID)); got != sum {
					t.Errorf("the data at the place differs: %s, want %s", got, sum)
				}
				n.expect("healthy", v.request())
			}
			if got := other.sum(other.place(podUID)); got != otherSum {
				t.Error("the neighbour's data changed")
			}
			v.writable(v.place(podUID))
		})
	}
}

// writable shows that the place takes writes again, and puts things back.
func (v *volume) writable(place string) {
	v.node.t.Helper()
	if v.fs == "block" {
		f, err := os.OpenFile(place, os.O_WRONLY, 0)
		must(v.node.t, err)
		must(v.node.t, f.Close())
		return
	}
	probe := filepath.Join(place, "written")
	must(v.node.t, os.WriteFile(probe, []byte("x"), 0o600))
	must(v.node.t, os.Remove(probe))
}

// TestRebindKeepsOptions publishes read-only, and a subdirectory, over a
// read-write staged mount: each place gets its own options back.
func TestRebindKeepsOptions(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "options")
	p := v.place(podUID)
	v.unpublish()
	must(t, unix.Mount(filepath.Join(v.staging, "sub"), p, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOEXEC|unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, ""))
	before := n.table()
	n.expect("healthy", v.request())
	v.unpublish()
	n.expect("healed", v.request())
	n.sameTable(before)
	if err := os.WriteFile(filepath.Join(p, "x"), nil, 0o600); err == nil {
		t.Error("the read-only place takes writes")
	}
	if _, err := os.Stat(filepath.Join(p, "deep", "c")); err != nil {
		t.Error(err)
	}
}

// TestRebindOfLostSubdirectory refuses when the directory the place showed is
// gone, or is a link by now.
func TestRebindOfLostSubdirectory(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, staging string){
		"gone": func(t *testing.T, s string) { must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved"))) },
		"link": func(t *testing.T, s string) {
			must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved")))
			must(t, os.Symlink("/etc", filepath.Join(s, "sub")))
		},
		"file": func(t *testing.T, s string) {
			must(t, os.Rename(filepath.Join(s, "sub"), filepath.Join(s, "moved")))
			must(t, os.WriteFile(filepath.Join(s, "sub"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume("ext4", "subdirectory")
			p := v.place(podUID)
			v.unpublish()
			must(t, unix.Mount(filepath.Join(v.staging, "sub"), p, "", unix.MS_BIND, ""))
			n.expect("healthy", v.request())
			v.unpublish()
			spoil(t, v.staging)
			before := n.table()
			n.expect("abnormal", v.request(), "NotMounted")
			n.sameTable(before)
		})
	}
}

// TestNeverSeenHealthy does nothing for a volume without a record.
func TestNeverSeenHealthy(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "stranger")
	v.unpublish()
	before := n.table()
	n.expect("abnormal", v.request(), "NotMounted", "never seen healthy")
	n.sameTable(before)
}

// TestModeCheck changes nothing.
func TestModeCheck(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("ext4", "checked")
	n.expect("healthy", v.request())
	n.stop()
	n.args = append(n.args, "--mode=check")
	n.start()
	v.unpublish()
	before := n.table()
	n.expect("abnormal", v.request(), "NotMounted", "--mode=check")
	n.sameTable(before)
}
