package ops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
