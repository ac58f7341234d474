package ops

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func spaceAt(t *testing.T, path string) facts.Space {
	t.Helper()
	a := probe(ProbeQuery{Path: path})
	if a.Errno != 0 {
		t.Fatalf("%s: %v", a.Op, a.Errno)
	}
	return a.Space
}

func TestSpace(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(fs, func(t *testing.T) {
			v := newVolume(t, fs)
			var st unix.Statfs_t
			must(t, unix.Statfs(v.path, &st))
			want := facts.Space{
				Blocks: st.Blocks, Available: st.Bavail, Files: st.Files, FreeFiles: st.Ffree,
			}
			if got := spaceAt(t, v.path); got != want || got.Available == 0 || (got.Files == 0) != (fs == "btrfs") {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// ext4 keeps a part of its blocks for root: for whom the volume is, it is full
// before that.
func TestNoSpaceLeft(t *testing.T) {
	for _, fs := range []string{"ext4", "tmpfs"} {
		t.Run(fs, func(t *testing.T) {
			v := newVolume(t, fs)
			fill(t, v.path)
			if s := spaceAt(t, v.path); s.Available != 0 || s.Blocks == 0 || s.FreeFiles == 0 {
				t.Errorf("full: %+v", s)
			}
			must(t, os.Remove(v.path+"/full"))
			if s := spaceAt(t, v.path); s.Available == 0 {
				t.Errorf("emptied: %+v", s)
			}
		})
	}
	t.Run("inodes", func(t *testing.T) {
		v := newVolume(t, "tmpfs")
		must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT, "size=1m,nr_inodes=3"))
		if s := spaceAt(t, v.path); s.FreeFiles != 0 || s.Files != 3 || s.Available == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestSpaceOfWhatHasNone(t *testing.T) {
	needsRoot(t)
	at := filepath.Join(realDir(t), "m")
	must(t, os.Mkdir(at, 0o700))
	must(t, unix.Mount("test", at, "ramfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	if s := spaceAt(t, at); s != (facts.Space{}) {
		t.Errorf("%+v", s)
	}
	fuse := filepath.Join(realDir(t), "fuse")
	must(t, os.Mkdir(fuse, 0o700))
	d := mountFUSE(t, fuse)
	defer d.end()
	if s := spaceAt(t, fuse); s != (facts.Space{}) { // it answers ENOSYS
		t.Errorf("%+v", s)
	}
}

func TestProbeDoesNotKeepFromUnmounting(t *testing.T) {
	v := newVolume(t, "ext4")
	for range 20 {
		q := query(t, v)
		q.Root = true
		if a := probe(q); a.Errno != 0 || a.UUID == "" {
			t.Fatalf("%+v", a)
		}
		if err := unix.Unmount(v.path, 0); err != nil {
			t.Fatal(err)
		}
		must(t, unix.Mount(v.device, v.path, "ext4", 0, ""))
	}
}
