package host

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch"
)

// diskVolume mounts a new ext4 below a node's root.
func diskVolume(t *testing.T, path string) (node, image string) {
	t.Helper()
	realKernel(t)
	node, image = loop(t, 16)
	command(t, "mkfs.ext4", "-q", node)
	done(t, os.MkdirAll(path, 0o700))
	done(t, unix.Mount(node, path, "ext4", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return node, image
}

func lookOf(m Mount) Question {
	return Question{Probe: &m, Paths: []Ask{{Path: m.Path, Mounted: true}}}
}

// seen is a look that must succeed.
func seen(t *testing.T, n *Node, m Mount) Sight {
	t.Helper()
	s, err := n.Look(context.Background(), lookOf(m))
	done(t, err)
	return s
}

func TestLookAtADisk(t *testing.T) {
	n, root := newNode(t)
	node, image := diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	want := command(t, "blkid", "-o", "value", "-s", "UUID", node)
	for i := range 3 { // the second time within a moment of the first
		s := seen(t, n, m)
		if s.UUID != want || s.Kind != KindDirectory || s.Changed || s.Answer.Errno != 0 || !s.Opened.Open || s.Opened.Size != 16<<20 ||
			s.Opened.ReadOnly || s.Opened.DiskSeq == 0 || s.Space.Available == 0 || !s.Paths[m.Path].Looked {
			t.Errorf("look %d: %+v", i+1, s)
		}
	}
	command(t, "blockdev", "--setro", node)
	s := seen(t, n, m)
	command(t, "blockdev", "--setrw", node) // it would outlive the file
	if !s.Opened.ReadOnly {
		t.Errorf("write-protected: %+v", s.Opened)
	}
	done(t, os.Truncate(image, 0))
	if s := seen(t, n, m); s.Answer.Op != touch.OpReadDevice || s.Answer.Errno != syscall.EIO {
		t.Errorf("its file is empty: %+v", s.Answer)
	}
}

// What is met at a place while something else stands there is not taken for the
// mount that was meant, now or later.
func TestLookBehindACover(t *testing.T) {
	n, root := newNode(t)
	node, _ := diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	diskVolume(t, root+"/m")
	if s := seen(t, n, m); !s.Changed {
		t.Errorf("covered: %+v", s)
	}
	done(t, unix.Unmount(root+"/m", 0))
	if s, want := seen(t, n, m), command(t, "blkid", "-o", "value", "-s", "UUID", node); s.Changed || s.UUID != want {
		t.Errorf("uncovered: UUID %s, want %s; %+v", s.UUID, want, s)
	}
}

func TestTryWrite(t *testing.T) {
	n, root := newNode(t)
	diskVolume(t, root+"/m")
	put(t, root+"/t")
	t.Cleanup(func() { done(t, unix.Unmount(root+"/t", 0)) })
	disk, memory := topAt(t, n, root+"/m"), topAt(t, n, root+"/t")
	write := func(m Mount) Write {
		t.Helper()
		w, err := n.TryWrite(context.Background(), m)
		done(t, err)
		return w
	}
	for _, m := range []Mount{disk, memory} {
		if w := write(m); !w.Asked || w.Unable || w.Errno != 0 || w.Silent || w.Elapsed <= 0 {
			t.Errorf("%s: %+v", m.FSType, w)
		}
	}
	done(t, unix.Mount("", root+"/m", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if w := write(disk); w.Errno != syscall.EROFS || w.Unable {
		t.Errorf("read-only: %+v", w)
	}
	put(t, root+"/m")
	if w := write(disk); w.Asked || !w.Unable || w.Errno != 0 {
		t.Errorf("covered by another: %+v", w)
	}
	done(t, unix.Unmount(root+"/m", 0))
	at := under(t, &n.probes, disk)
	if w := write(disk); w.Asked || !w.Unable {
		t.Errorf("beside a probe: %+v", w)
	}
	n.probes.finish(storageOf(disk), at, Sight{}, nil)
	if w := write(disk); !w.Asked {
		t.Errorf("after it: %+v", w)
	}
}

// impatient is a node that takes a second without an answer for silence.
func impatient(t *testing.T) (*Node, string) {
	t.Helper()
	return newNode(t, func(c *Config) { c.ProbeTimeout, c.Pool = time.Second, newPool(t, 100*time.Millisecond) })
}

func TestWriteToAFrozenFilesystem(t *testing.T) {
	n, root := impatient(t)
	diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	dir, err := os.Open(root + "/m")
	done(t, err)
	defer dir.Close()
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE, FITHAW
	done(t, unix.IoctlSetInt(int(dir.Fd()), freeze, 0))
	frozen := true
	end := func() {
		if frozen {
			frozen = false
			done(t, unix.IoctlSetInt(int(dir.Fd()), thaw, 0))
		}
	}
	defer end()

	if s := seen(t, n, m); s.Answer.Silent || s.Answer.Errno != 0 {
		t.Errorf("a read: %+v", s.Answer)
	}
	w, err := n.TryWrite(context.Background(), m)
	if err != nil || !w.Silent || !w.Writing || !w.Asked {
		t.Fatalf("%+v, %v", w, err)
	}
	if !slices.ContainsFunc(w.Waits, func(f string) bool { return strings.Contains(f, "percpu") || strings.Contains(f, "sb_start_write") }) {
		t.Errorf("it waits in %q", w.Waits)
	}
	if !w.Stuck {
		t.Skip("this kernel lets a write that waits for a thaw be killed")
	}
	// Remembered for as long as its worker lives.
	started := n.cfg.Pool.Stats()
	for range 3 {
		if s := seen(t, n, m); !s.Answer.Silent || !s.Answer.Writing || !s.Paths[m.Path].Looked {
			t.Errorf("%+v", s)
		}
		if w, err := n.TryWrite(context.Background(), m); err != nil || w.Asked {
			t.Errorf("a second write: %+v, %v", w, err)
		}
	}
	if now := n.cfg.Pool.Stats(); now.Abandoned != 1 || started.Abandoned != 1 {
		t.Errorf("%+v, then %+v", started, now)
	}
	end()
	eventually(t, "it answers after the thaw", func() bool { return !seen(t, n, m).Answer.Silent })
	if w, err := n.TryWrite(context.Background(), m); err != nil || !w.Asked || w.Errno != 0 {
		t.Errorf("after the thaw: %+v, %v", w, err)
	}
	eventually(t, "the worker ends", func() bool { return n.cfg.Pool.Stats().Abandoned == 0 })
	entries, err := os.ReadDir(root + "/m")
	if err != nil || len(entries) != 1 { // lost+found
		t.Errorf("%v, %v", entries, err)
	}
}

// A daemon that has not even answered the first request.
func TestLookAtASilentDaemon(t *testing.T) {
	n, root := impatient(t)
	realKernel(t)
	if _, err := os.Stat("/sys/fs/fuse/connections"); err != nil {
		t.Fatal(err)
	}
	const connections = "/sys/fs/fuse/connections"
	done(t, unix.Mount("fusectl", connections, "fusectl", 0, ""))
	t.Cleanup(func() { done(t, unix.Unmount(connections, unix.MNT_DETACH)) })
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	done(t, err)
	place := root + "/m"
	done(t, os.Mkdir(place, 0o700))
	done(t, unix.Mount("test", place, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)))
	t.Cleanup(func() { _ = unix.Unmount(place, unix.MNT_DETACH) })
	m := topAt(t, n, place)

	s := seen(t, n, m)
	if a := s.Answer; !a.Silent || a.Stuck || a.Waiting < 1 || len(a.Waits) == 0 {
		t.Errorf("%+v", a)
	}
	other := m
	other.FSType = "nfs4" // which counts nothing there
	if a := seen(t, n, other).Answer; !a.Silent || a.Waiting != 0 {
		t.Errorf("%+v", a)
	}
	if err := unix.Close(device); err != nil { // the daemon is gone
		t.Fatal(err)
	}
	if a := seen(t, n, m).Answer; a.Silent || a.Errno != syscall.ENOTCONN {
		t.Errorf("%+v", a)
	}
}

func TestNobodyCountsForAProbeThatAnswers(t *testing.T) {
	n, _ := newNode(t)
	for _, fs := range []string{"fuse.x", "fuse", "fuseblk", "ext4"} {
		count, stop := n.countWaiting(context.Background(), Mount{FSType: fs, Dev: Dev{0, 9999}})
		stop()
		stop()
		if got := count(); got != 0 {
			t.Errorf("%s: %d", fs, got)
		}
	}
	if s := n.cfg.Pool.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
	for dev, want := range map[Dev]string{{0, 61}: "/sys/fs/fuse/connections/61", {8, 16}: "/sys/fs/fuse/connections/8388624"} {
		if got := fuseConnection(dev); got != want {
			t.Errorf("%s: %s, want %s", dev, got, want)
		}
	}
}
