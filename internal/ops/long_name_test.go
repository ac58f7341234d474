package ops

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Anybody may hold a file whose path is longer than the kernel shows. It is read like any
// other, so that it keeps no volume from being staged anew.
func TestFUSEDaemonsBesideALongPath(t *testing.T) {
	needsRoot(t)
	top := t.TempDir()
	at, err := openDir(top)
	must(t, err)
	name := strings.Repeat("d", 250)
	for range unix.PathMax/len(name) + 1 {
		must(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		_ = unix.Close(at)
		at = next
	}
	fd, err := unix.Openat(at, "fuse", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_ = unix.Close(at)
	file := os.NewFile(uintptr(fd), filepath.Join(top, "long"))
	withoutFirstThread(t, 0, "/", file)
	must(t, file.Close())
	if a := daemonsWalked(t, ProcessesQuery{}); a.Unread != 0 || a.Cut {
		t.Errorf("%d processes are unread, cut: %v", a.Unread, a.Cut)
	}
}

// A pod's user may move a directory in which something is mounted as far down as he likes: the kernel
// shows the whole path for each mount in it, and one that no process can walk is not read.
func TestMountsBeneathALongPath(t *testing.T) {
	needsRoot(t)
	if _, err := mount.OwnTable(); err != nil {
		t.Skip("needs statmount (Linux 6.8):", err)
	}
	dir := realDir(t)
	must(t, unix.Mount("deep", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	at, err := openDir(dir)
	must(t, err)
	for i := range 50 {
		must(t, os.MkdirAll(fmt.Sprintf("%s/a/%d", dir, i), 0o700))
		must(t, unix.Mount("nested", fmt.Sprintf("%s/a/%d", dir, i), "tmpfs", 0, ""))
	}
	top, name := at, strings.Repeat("d", 250)
	for range 4000 {
		must(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		if at != top {
			_ = unix.Close(at)
		}
		at = next
	}
	must(t, unix.Renameat(top, "a", at, "a"))
	_, _ = unix.Close(at), unix.Close(top)
	nested := 0
	must(t, thread{}.visit(func(m facts.Mount) {
		if m.Path == "" {
			nested++
		}
	}))
	if nested != 50 {
		t.Errorf("%d of 50 mounts are without the path", nested)
	}
}
