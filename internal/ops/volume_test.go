package ops

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// volume is a mounted filesystem with a directory "dir" and a file "dir/file".
type volume struct {
	path   string
	number facts.Dev // of the superblock
	device string
	file   string
}

func newVolume(t *testing.T, fs string) volume {
	t.Helper()
	needsRoot(t)
	dir := realDir(t)
	v := volume{path: filepath.Join(dir, "volume")}
	must(t, os.Mkdir(v.path, 0o755))
	if fs == "tmpfs" {
		must(t, unix.Mount("tmpfs", v.path, "tmpfs", 0, "size=1m"))
	} else {
		image := filepath.Join(dir, "image")
		must(t, os.WriteFile(image, nil, 0o600))
		must(t, os.Truncate(image, 300<<20))
		output(t, "mkfs."+fs, "-q", image)
		v.device = output(t, "losetup", "--find", "--show", image)
		t.Cleanup(func() { output(t, "losetup", "--detach", v.device) })
		must(t, unix.Mount(v.device, v.path, fs, 0, ""))
	}
	t.Cleanup(func() { _ = unix.Unmount(v.path, unix.MNT_DETACH) })
	v.number = numberOf(t, v.path)
	if fs == "btrfs" {
		// Files here have another number than the mount.
		output(t, "btrfs", "subvolume", "create", filepath.Join(v.path, "dir"))
	} else {
		must(t, os.Mkdir(filepath.Join(v.path, "dir"), 0o755))
	}
	v.file = filepath.Join(v.path, "dir/file")
	must(t, os.WriteFile(v.file, []byte("text"), 0o600))
	return v
}

// numberOf returns the number that mountinfo shows for a mount point.
func numberOf(t *testing.T, path string) (n facts.Dev) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	must(t, err)
	defer f.Close()
	must(t, mount.Visit(f, func(m facts.Mount) error {
		if m.Path == path {
			n = m.Dev
		}
		return nil
	}))
	if n.Zero() {
		t.Fatalf("nothing is mounted at %s", path)
	}
	return n
}
