package faultfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Nothing) }

// mount mounts a filesystem with a small disk, of which the kernel believes
// nothing for any time.
func mount(t *testing.T) (fs *faultfs.FS, dir, disk string) {
	t.Helper()
	harness.NeedsRoot(t)
	disk = filepath.Join(t.TempDir(), "disk")
	harness.Must(t, os.WriteFile(disk, make([]byte, 1<<20), 0o600))
	dir = t.TempDir()
	return faultfs.Mount(t, dir, faultfs.Config{Disk: disk}), dir, disk
}

// asks makes each kind of request reach the daemon.
var asks = map[faultfs.Kind]func(dir string) error{
	faultfs.Getattr: func(dir string) error {
		return unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &unix.Statx_t{})
	},
	faultfs.Statfs: func(dir string) error { return unix.Statfs(dir, &unix.Statfs_t{}) },
	faultfs.Lookup: func(dir string) error { return unix.Access(filepath.Join(dir, "a"), unix.F_OK) },
	faultfs.Open: func(dir string) error {
		return open(dir, unix.O_RDONLY|unix.O_DIRECTORY, func(int) error { return nil })
	},
	faultfs.Read: func(dir string) error {
		return open(dir+"/disk.img", unix.O_RDONLY, func(fd int) error { _, err := unix.Pread(fd, make([]byte, 4096), 0); return err })
	},
	faultfs.Write: func(dir string) error {
		return open(dir+"/disk.img", unix.O_WRONLY, func(fd int) error { _, err := unix.Pwrite(fd, []byte("written"), 0); return err })
	},
	faultfs.Fsync: func(dir string) error { return open(dir+"/disk.img", unix.O_WRONLY, unix.Fsync) },
}

func open(path string, flags int, then func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return then(fd)
}

// TestFail lets each kind of request fail, and no other, and counts them.
func TestFail(t *testing.T) {
	for kind, ask := range asks {
		t.Run(string(kind), func(t *testing.T) {
			fs, dir, _ := mount(t)
			before := fs.Requests(kind)
			harness.Must(t, ask(dir))
			if fs.Requests(kind) == before {
				t.Error("the request did not reach the daemon")
			}
			fs.Fail(unix.EUCLEAN, kind)
			if err := ask(dir); !errors.Is(err, unix.EUCLEAN) {
				t.Errorf("got %v", err)
			}
			for _, another := range []faultfs.Kind{faultfs.Getattr, faultfs.Statfs} {
				if another != kind {
					harness.Must(t, asks[another](dir))
				}
			}
			fs.Lift(kind)
			harness.Must(t, ask(dir))
			fs.Fail(unix.ENODEV)
			if err := ask(dir); !errors.Is(err, unix.ENODEV) {
				t.Errorf("with a fault of everything: %v", err)
			}
		})
	}
}

// TestDelay answers late, and at once when the fault is lifted meanwhile.
func TestDelay(t *testing.T) {
	fs, dir, _ := mount(t)
	const late = 30 * time.Millisecond
	fs.Delay(late, faultfs.Statfs)
	start := time.Now()
	harness.Must(t, asks[faultfs.Statfs](dir))
	if took := time.Since(start); took < late {
		t.Errorf("it answered after %s", took)
	}
	fs.Delay(10*harness.Patience, faultfs.Statfs)
	answered := make(chan error, 1)
	go func() { answered <- asks[faultfs.Statfs](dir) }()
	fs.AwaitWaiting(1)
	fs.Lift()
	harness.Must(t, <-answered)
}

// TestDropWrites loses what is written, without a word.
func TestDropWrites(t *testing.T) {
	fs, dir, disk := mount(t)
	fs.DropWrites()
	harness.Must(t, asks[faultfs.Write](dir))
	harness.Must(t, asks[faultfs.Fsync](dir))
	raw, err := os.ReadFile(disk)
	harness.Must(t, err)
	if raw[0] != 0 {
		t.Errorf("the disk has %q", raw[:8])
	}
	fs.Lift()
	harness.Must(t, asks[faultfs.Write](dir))
	raw, err = os.ReadFile(disk)
	harness.Must(t, err)
	if string(raw[:7]) != "written" {
		t.Errorf("the disk has %q", raw[:8])
	}
}

// TestHang keeps who asks waiting, past any signal, until the fault is lifted or
// the connection ends.
func TestHang(t *testing.T) {
	for name, end := range map[string]func(*faultfs.FS){
		"lifted":  func(fs *faultfs.FS) { fs.Lift() },
		"aborted": (*faultfs.FS).Abort,
		"killed":  (*faultfs.FS).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			fs, _, _ := mount(t)
			fs.Hang()
			before := fs.Requests(faultfs.All)
			asker := fs.Ask()
			harness.Eventually(t, "the daemon reads the request", func() bool { return fs.Requests(faultfs.All) > before })
			asker.Kill()
			harness.Eventually(t, "the one who asks waits uninterruptibly", func() bool { return harness.State(asker.PID()) == "D" })
			if n := fs.Waiting(); n < 1 {
				t.Errorf("%d requests wait", n)
			}
			end(fs)
			if asker.Wait() == nil {
				t.Error("who was killed got an answer")
			}
		})
	}
}

// TestStop leaves requests unread: who asks can be killed, and gets an answer
// when the daemon goes on.
func TestStop(t *testing.T) {
	fs, dir, _ := mount(t)
	fs.Stop()
	asker := fs.Ask()
	fs.AwaitWaiting(1)
	asker.Kill()
	if asker.Wait() == nil {
		t.Error("who was killed got an answer")
	}
	asker = fs.Ask()
	fs.AwaitWaiting(1)
	fs.Continue()
	harness.Must(t, asker.Wait())
	harness.Must(t, asks[faultfs.Read](dir))
}

// TestKill ends the connection for good.
func TestKill(t *testing.T) {
	fs, dir, _ := mount(t)
	fs.Kill()
	if err := asks[faultfs.Statfs](dir); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("got %v", err)
	}
}

// TestFiles serves what is there, in listings too.
func TestFiles(t *testing.T) {
	_, dir, _ := mount(t)
	entries, err := os.ReadDir(dir)
	harness.Must(t, err)
	if len(entries) != len(faultfs.Files)+1 {
		t.Errorf("got %v", entries)
	}
	for name, content := range faultfs.Files {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(raw) != content {
			t.Errorf("%s has %q, %v", name, raw, err)
		}
	}
}

// TestEndsInAnyState mounts, breaks in every way, and leaves the rest to the end
// of the test: a process that waits ends, and nothing is left over.
func TestEndsInAnyState(t *testing.T) {
	for name, breaks := range map[string]func(*faultfs.FS){
		"stopped": (*faultfs.FS).Stop,
		"hang":    func(fs *faultfs.FS) { fs.Hang() },
		"late":    func(fs *faultfs.FS) { fs.Delay(10 * harness.Patience) },
	} {
		var asker *faultfs.Asker
		t.Run(name, func(t *testing.T) {
			fs, _, _ := mount(t)
			breaks(fs)
			asker = fs.Ask()
			fs.AwaitWaiting(1)
		})
		if asker.Wait() == nil {
			t.Errorf("%s: who waited got an answer", name)
		}
	}
}
