package ops

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// mustWrite returns the answer to a write.
func mustWrite(t *testing.T, path string) facts.Write {
	t.Helper()
	a, err := write(writeTo(path))
	must(t, err)
	if a.Elapsed <= 0 {
		t.Errorf("it took %s", a.Elapsed)
	}
	return a
}

func takesWrites(t *testing.T, path string) {
	t.Helper()
	if a := mustWrite(t, path); a.Unable || a.Errno != 0 || a.Op != "" {
		t.Errorf("%+v", a)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	return fmt.Sprint(entries)
}

// free returns the space left, after all deleted files are gone.
func free(t *testing.T, path string) (blocks, inodes uint64) {
	t.Helper()
	dir, err := os.Open(path)
	must(t, err)
	defer dir.Close()
	must(t, unix.Syncfs(int(dir.Fd())))
	var st unix.Statfs_t
	must(t, unix.Statfs(path, &st))
	return st.Bfree, st.Ffree
}

// overlayOver mounts an overlay that writes to a volume.
func overlayOver(t *testing.T, v volume) string {
	t.Helper()
	at := filepath.Join(realDir(t), "overlay")
	for _, dir := range []string{at, v.path + "/lower", v.path + "/upper", v.path + "/work"} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, unix.Mount("overlay", at, "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", v.path)))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

func TestWriteLeavesNothing(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(fs, func(t *testing.T) {
			v := newVolume(t, fs)
			before := names(t, v.path)
			takesWrites(t, v.path) // xfs makes room for inodes once
			blocks, inodes := free(t, v.path)
			for range 50 {
				takesWrites(t, v.path)
			}
			if after := names(t, v.path); after != before {
				t.Errorf("names %s, before %s", after, before)
			}
			// xfs frees in its own time; btrfs writes its trees anew in other places.
			b, i := free(t, v.path)
			for deadline := time.Now().Add(20 * time.Second); (b < blocks || i < inodes) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				b, i = free(t, v.path)
			}
			if fs != "btrfs" && (b < blocks || i < inodes) {
				t.Errorf("%d blocks and %d inodes are left, before %d and %d", b, i, blocks, inodes)
			}
			if err := unix.Unmount(v.path, 0); err != nil {
				t.Errorf("still in use: %v", err)
			}
		})
	}
}

func TestWriteToAnOverlay(t *testing.T) {
	v := newVolume(t, "xfs")
	at := overlayOver(t, v)
	takesWrites(t, at)
	if got := names(t, at) + names(t, v.path+"/upper"); got != "[][]" {
		t.Errorf("left: %s", got)
	}
	shutDown(t, v.path)
	if a := mustWrite(t, at); a.Unable || a.Errno != unix.EIO {
		t.Errorf("over a dead upper: %+v", a)
	}
}

func TestWriteToAReadOnlyUpper(t *testing.T) {
	v := newVolume(t, "tmpfs")
	at := overlayOver(t, v)
	must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m"))
	if a := mustWrite(t, at); a.Unable || a.Errno != unix.EROFS {
		t.Errorf("%+v", a)
	}
}

func shutDown(t *testing.T, path string) {
	t.Helper()
	root, err := os.Open(path)
	must(t, err)
	defer root.Close()
	const shutdown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
	how := uint32(2)            // without flushing the log
	must(t, ioctl(int(root.Fd()), shutdown, unsafe.Pointer(&how)))
}

func TestWriteToWhatTakesNone(t *testing.T) {
	for name, tc := range map[string]struct {
		fs    string
		spoil func(t *testing.T, v volume)
		want  syscall.Errno
	}{
		"ext4, shut down": {"ext4", func(t *testing.T, v volume) { shutDown(t, v.path) }, unix.EIO},
		"xfs, shut down":  {"xfs", func(t *testing.T, v volume) { shutDown(t, v.path) }, unix.EIO},
		"ext4, read-only": {"ext4", func(t *testing.T, v volume) { must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")) }, unix.EROFS},
		"tmpfs, read-only": {"tmpfs", func(t *testing.T, v volume) {
			must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m"))
		}, unix.EROFS},
		"a read-only mount": {"tmpfs", func(t *testing.T, v volume) {
			must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		}, unix.EROFS},
		"ext4, after an error": {"ext4", remountedByAnError, unix.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, tc.fs)
			tc.spoil(t, v)
			if a := mustWrite(t, v.path); a.Unable || a.Errno != tc.want || a.Op == "" {
				t.Errorf("%+v, want %v", a, tc.want)
			}
		})
	}
}

// remountedByAnError lets ext4 count an error and turn read-only.
func remountedByAnError(t *testing.T, v volume) {
	t.Helper()
	must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT, "errors=remount-ro"))
	must(t, os.WriteFile("/sys/fs/ext4/"+filepath.Base(v.device)+"/trigger_fs_error", []byte("test"), 0o600))
}

// A full filesystem is no fault: it takes no write for lack of space only.
func TestWriteToAFullFilesystem(t *testing.T) {
	for _, fs := range []string{"ext4", "tmpfs"} {
		t.Run(fs, func(t *testing.T) {
			v := newVolume(t, fs)
			fill(t, v.path)
			if a := mustWrite(t, v.path); a.Errno != 0 && !a.Unable {
				t.Errorf("%+v", a)
			}
		})
	}
	t.Run("no inodes", func(t *testing.T) {
		v := newVolume(t, "tmpfs")
		must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT, "size=1m,nr_inodes=3")) // the root, a directory and its file
		if a := mustWrite(t, v.path); !a.Unable || a.Errno != unix.ENOSPC {
			t.Errorf("%+v", a)
		}
	})
}

// fill leaves no block to anybody.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path + "/full")
	must(t, err)
	defer f.Close()
	for err = nil; err == nil; {
		_, err = f.Write(make([]byte, 1<<20))
	}
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	_ = f.Sync()
}

func TestWriteThatCannotBeTried(t *testing.T) {
	needsRoot(t)
	mounted := func(fs string) string {
		at := filepath.Join(realDir(t), "m")
		must(t, os.Mkdir(at, 0o700))
		must(t, unix.Mount("test", at, fs, 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		return at
	}
	file := filepath.Join(realDir(t), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, unix.Mount(newVolume(t, "tmpfs").file, file, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(file, unix.MNT_DETACH) })
	fuse := filepath.Join(realDir(t), "fuse")
	must(t, os.Mkdir(fuse, 0o700))
	d := mountFUSE(t, fuse)
	defer d.end()
	for name, path := range map[string]string{"procfs": mounted("proc"), "sysfs": mounted("sysfs"), "FUSE without it": fuse, "a file": file} {
		if a := mustWrite(t, path); !a.Unable || a.Errno == 0 || a.Op != "create" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	gone := filepath.Join(realDir(t), "none")
	for path, op := range map[string]string{gone: "resolve", gone + "/x": "resolve"} {
		if a := mustWrite(t, path); a.Unable || a.Errno != unix.ENOENT || a.Op != op {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

// Only a read-only mount or superblock refuses the right to write: every other errno
// says nothing.
func TestAskToWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(t *testing.T, v volume)
		readOnly bool
	}{
		"writable":  {func(*testing.T, volume) {}, false},
		"immutable": {func(t *testing.T, v volume) { output(t, "chattr", "+i", v.path) }, false},
		"read-only": {func(t *testing.T, v volume) { must(t, unix.Mount("", v.path, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")) }, true},
	} {
		for _, fs := range []string{"ext4", "xfs", "btrfs"} {
			v := newVolume(t, fs)
			tc.change(t, v)
			if a := probe(ProbeQuery{Path: v.path, Thawed: true}); a.Errno != 0 || a.ReadOnly != tc.readOnly {
				t.Errorf("%s, %s: %+v", fs, name, a)
			}
		}
	}
}

func TestWriteLeavesNoDescriptor(t *testing.T) {
	v := newVolume(t, "tmpfs")
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(fds)
	}
	before := count()
	for _, p := range []string{v.path, "/proc", v.file, v.path + "/none"} {
		mustWrite(t, p)
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

// writeTo asks for a write to whatever is mounted at a path.
func writeTo(p string) WriteQuery {
	q := WriteQuery{Path: p}
	if l, err := openTarget(p); err == nil {
		defer l.close()
		if fd, now, err := l.top(); err == nil {
			_ = unix.Close(fd)
			q.Want = now
		}
	}
	return q
}

// Another mount is there since: nothing is written to it.
func TestWriteToAnotherMount(t *testing.T) {
	needsRoot(t)
	a, err := write(WriteQuery{Path: realDir(t), Want: facts.Ref{ID: 1, OldID: 1}})
	if err != nil || !a.Unable {
		t.Errorf("%+v, %v", a, err)
	}
}
