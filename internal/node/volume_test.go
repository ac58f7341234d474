package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
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

func lookOf(m facts.Mount) InspectQuery {
	return InspectQuery{Probe: &m, Paths: []PathQuery{{Path: m.Path, Mounted: true}}}
}

// seen is a look that must succeed.
func seen(t *testing.T, n *Node, m facts.Mount) Inspection {
	t.Helper()
	s, err := n.Inspect(context.Background(), lookOf(m))
	for end := time.Now().Add(time.Minute); errors.Is(err, worker.ErrNoWorker) && time.Now().Before(end); { // on a busy machine
		s, err = n.Inspect(context.Background(), lookOf(m))
	}
	done(t, err)
	return s
}

func TestInspectADisk(t *testing.T) {
	n, root := newNode(t)
	node, image := diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	want := command(t, "blkid", "-o", "value", "-s", "UUID", node)
	for i := range 3 { // the second time within a moment of the first
		s := seen(t, n, m)
		if s.UUID != want || s.Kind != facts.KindDirectory || s.Changed || s.Answer.Errno != 0 ||
			s.Space.Available == 0 || !s.Paths[m.Path].Inspected {
			t.Errorf("look %d: %+v", i+1, s)
		}
	}
	command(t, "blockdev", "--setro", node)
	device := n.BlockDevice(m.Dev)
	command(t, "blockdev", "--setrw", node) // it would outlive the file
	if !device.ReadOnly {
		t.Errorf("write-protected: %+v", device)
	}
	done(t, os.Truncate(image, 0))
	if s := seen(t, n, m); s.Answer.Op != facts.OpReadDevice || s.Answer.Errno != syscall.EIO {
		t.Errorf("its file is empty: %+v", s.Answer)
	}
}

// What is met at a mount point while something else stands there is not taken for the
// mount that was meant, now or later.
func TestInspectBehindACover(t *testing.T) {
	n, root := newNode(t)
	node, _ := diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	diskVolume(t, root+"/m")
	if s := seen(t, n, m); !s.Changed {
		t.Errorf("covered: %+v", s)
	}
	done(t, unix.Unmount(root+"/m", 0))
	if s, want := seen(t, n, m), command(t, "blkid", "-o", "value", "-s", "UUID", node); s.Changed || s.UUID != want {
		t.Errorf("unmount-dead-top: UUID %s, want %s; %+v", s.UUID, want, s)
	}
}

func TestTryWrite(t *testing.T) {
	n, root := newNode(t)
	diskVolume(t, root+"/m")
	put(t, root+"/t")
	t.Cleanup(func() { done(t, unix.Unmount(root+"/t", 0)) })
	disk, memory := topAt(t, n, root+"/m"), topAt(t, n, root+"/t")
	write := func(m facts.Mount) facts.Write {
		t.Helper()
		w, err := n.TryWrite(context.Background(), m, false)
		done(t, err)
		return w
	}
	for _, m := range []facts.Mount{disk, memory} {
		if w := write(m); !w.Asked || w.Unable || w.Errno != 0 || w.TimedOut || w.Elapsed <= 0 {
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
	at := begin(t, n.probes, disk)
	if w := write(disk); w.Asked || !w.Unable {
		t.Errorf("beside a probe: %+v", w)
	}
	n.probes.finish(storageOf(disk), at, Inspection{}, nil)
	if w := write(disk); !w.Asked {
		t.Errorf("after it: %+v", w)
	}
}

// impatient is a node with a short probe timeout, but one that a busy machine keeps.
func impatient(t *testing.T) (*Node, string) {
	t.Helper()
	return newNode(t, func(c *Config) { c.ProbeTimeout, c.Pool = 3*time.Second, newPool(t, time.Second) })
}

// frozenVolume is mounted and frozen, until it is thawed or the test ends.
func frozenVolume(t *testing.T, n *Node, mountPoint string) (m facts.Mount, thaw func()) {
	t.Helper()
	diskVolume(t, mountPoint)
	m = topAt(t, n, mountPoint)
	dir, err := os.Open(mountPoint)
	done(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878
	done(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	thaw = sync.OnceFunc(func() { done(t, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)) })
	t.Cleanup(thaw)
	return m, thaw
}

// Reads are answered in full, and one worker waits for the thaw.
func TestFrozenFilesystem(t *testing.T) {
	n, root := impatient(t)
	m, thaw := frozenVolume(t, n, root+"/m")
	for range 3 {
		s := seen(t, n, m)
		if a := s.Answer; !a.Frozen || a.TimedOut || a.Errno != 0 || !slices.ContainsFunc(a.Waits, frozen) {
			t.Errorf("%+v", a)
		}
		if s.Kind != facts.KindDirectory || s.UUID == "" || s.Space.Blocks == 0 || s.ReadOnly || !s.Paths[m.Path].Inspected {
			t.Errorf("a part of the answer is missing: %+v", s)
		}
		if w, err := n.TryWrite(context.Background(), m, false); err != nil || !w.Unable || !w.Frozen || w.Asked {
			t.Errorf("a write: %+v, %v", w, err)
		}
	}
	if now := n.cfg.Pool.Stats(); now.Abandoned != 1 {
		t.Errorf("%+v", now)
	}
	thaw()
	eventually(t, "the worker ends", func() bool { return n.cfg.Pool.Stats().Abandoned == 0 })
	if a := seen(t, n, m).Answer; a.Frozen || a.TimedOut || a.Errno != 0 {
		t.Errorf("after the thaw: %+v", a)
	}
	if w, err := n.TryWrite(context.Background(), m, false); err != nil || !w.Asked || w.Errno != 0 {
		t.Errorf("after the thaw: %+v, %v", w, err)
	}
}

// An overlay is not asked whether it is frozen: a write to it tells.
func TestWriteToAFrozenFilesystem(t *testing.T) {
	n, root := impatient(t)
	m, thaw := frozenVolume(t, n, root+"/m")
	for range 2 {
		w, err := n.TryWrite(context.Background(), m, false)
		if err != nil || !w.Unable || !w.Frozen || w.TimedOut || !slices.ContainsFunc(w.Waits, frozen) {
			t.Fatalf("%+v, %v", w, err)
		}
		if a := seen(t, n, m).Answer; !a.Frozen || a.TimedOut {
			t.Errorf("%+v", a)
		}
	}
	if now := n.cfg.Pool.Stats(); now.Abandoned != 1 {
		t.Errorf("%+v", now)
	}
	thaw()
	eventually(t, "the worker ends", func() bool { return n.cfg.Pool.Stats().Abandoned == 0 })
	if w, err := n.TryWrite(context.Background(), m, false); err != nil || !w.Asked || w.Errno != 0 {
		t.Errorf("after the thaw: %+v, %v", w, err)
	}
	entries, err := os.ReadDir(root + "/m")
	if err != nil || len(entries) != 1 { // lost+found
		t.Errorf("%v, %v", entries, err)
	}
}

// Only where the mount is writable does the refusal speak of the superblock.
func TestReadOnlySuperblock(t *testing.T) {
	n, root := newNode(t)
	diskVolume(t, root+"/m")
	if s := seen(t, n, topAt(t, n, root+"/m")); s.ReadOnly {
		t.Errorf("writable: %+v", s)
	}
	done(t, unix.Mount("", root+"/m", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	if s := seen(t, n, topAt(t, n, root+"/m")); s.ReadOnly || s.Answer.Errno != 0 {
		t.Errorf("a read-only mount: %+v", s)
	}
	done(t, unix.Mount("", root+"/m", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	m := topAt(t, n, root+"/m")
	done(t, unix.Mount("", root+"/m", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if s := seen(t, n, m); !s.ReadOnly || s.Answer.Errno != 0 {
		t.Errorf("a read-only superblock: %+v", s)
	}
}

// A daemon that has not even answered the first request.
func TestInspectADaemonThatDoesNotAnswer(t *testing.T) {
	n, root := newNode(t, func(c *Config) { c.ProbeTimeout = 3 * time.Second })
	realKernel(t)
	if _, err := os.Stat("/sys/fs/fuse/connections"); err != nil {
		t.Fatal(err)
	}
	const connections = "/sys/fs/fuse/connections"
	done(t, unix.Mount("fusectl", connections, "fusectl", 0, ""))
	t.Cleanup(func() { done(t, unix.Unmount(connections, unix.MNT_DETACH)) })
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	done(t, err)
	mountPoint := root + "/m"
	done(t, os.Mkdir(mountPoint, 0o700))
	done(t, unix.Mount("test", mountPoint, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)))
	t.Cleanup(func() { _ = unix.Unmount(mountPoint, unix.MNT_DETACH) })
	m := topAt(t, n, mountPoint)

	eventually(t, "it shows where a worker waits that can be ended", func() bool {
		a := seen(t, n, m).Answer
		if !a.TimedOut || a.Stuck {
			t.Fatalf("timed out %t, stuck %t", a.TimedOut, a.Stuck)
		}
		return len(a.Waits) > 0
	})
	if err := unix.Close(device); err != nil { // the daemon is gone
		t.Fatal(err)
	}
	eventually(t, "it is disconnected", func() bool {
		a := seen(t, n, m).Answer
		return !a.TimedOut && a.Errno == syscall.ENOTCONN
	})
}

func TestFUSEConnectionOfADevice(t *testing.T) {
	for dev, want := range map[facts.Dev]uint64{{Major: 0, Minor: 61}: 61, {Major: 8, Minor: 16}: 8388624} {
		if got := dev.FUSEConnection(); got != want {
			t.Errorf("%s: %d, want %d", dev, got, want)
		}
	}
}
