package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// moodyDaemon is a fuseDaemon that can fail in single things.
type moodyDaemon struct {
	*fuseDaemon
	// fails is the opcode that gets EIO, 0 for none.
	fails atomic.Uint32
	// deaf makes it answer one more request and then read none until the end.
	deaf  atomic.Bool
	hears chan struct{}
}

// anHour is how long the kernel may believe the daemon's attributes, in seconds.
const anHour = 3600

// newMoody mounts a daemon's filesystem as a volume, staged and published, whose
// attributes the kernel keeps for the given number of seconds.
func (n *node) newMoody(attrValid uint64) (*volume, *moodyDaemon) {
	n.t.Helper()
	t := n.t
	v := n.newVolume("tmpfs", "moody")
	v.unpublish()
	must(t, unix.Unmount(v.staging, 0))
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("moody", v.staging, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	d := &moodyDaemon{
		fuseDaemon: &fuseDaemon{t: t, dev: os.NewFile(uintptr(fd), "fuse"), done: make(chan struct{})},
		hears:      make(chan struct{}),
	}
	go d.serve(attrValid)
	t.Cleanup(func() { close(d.hears); _ = unix.Unmount(v.staging, unix.MNT_DETACH|unix.MNT_FORCE); <-d.done })
	var st unix.Stat_t
	must(t, unix.Stat(v.staging, &st))
	d.connection = fmt.Sprintf("/sys/fs/fuse/connections/%d", unix.Minor(st.Dev))
	if _, err := os.Stat(d.connection); err != nil {
		must(t, unix.Mount("fusectl", "/sys/fs/fuse/connections", "fusectl", 0, ""))
	}
	v.publishAgain()
	return v, d
}

func (d *moodyDaemon) serve(attrValid uint64) {
	defer close(d.done)
	defer d.dev.Close()
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(int(d.dev.Fd()), buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return
		}
		op, unique := binary.LittleEndian.Uint32(buf[4:]), binary.LittleEndian.Uint64(buf[8:])
		reply := d.answer(buf[:n])
		switch {
		case reply == nil:
			continue
		case op == d.fails.Load():
			reply = fuseReply(unique, int32(unix.EIO), nil)
		case op == fuseGetattr:
			binary.LittleEndian.PutUint64(reply[fuseHeaderOut:], attrValid)
		}
		_, _ = unix.Write(int(d.dev.Fd()), reply)
		if d.deaf.Load() {
			<-d.hears
		}
	}
}

// TestFuseFailsInOneThing sees what is hidden as long as nobody asks for it: the
// kernel may answer for attributes from its cache, and a daemon that still has
// them may be unable to open anything.
func TestFuseFailsInOneThing(t *testing.T) {
	for name, c := range map[string]struct {
		op   uint32
		says string
	}{
		"opening the root":      {fuseOpendir, "open"},
		"attributes, in memory": {fuseGetattr, "statx"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v, d := n.newMoody(anHour)
			n.expect("healthy", v.request())
			d.fails.Store(c.op)
			if _, err := os.Stat(v.place(podUID)); err != nil {
				t.Fatalf("the cache does not answer: %v", err)
			}
			before := n.table()
			for range 2 {
				n.expect("abnormal", v.request(), "IOError", "EIO", c.says)
			}
			n.sameTable(before)
			d.fails.Store(0)
			n.expect("healthy", v.request())
		})
	}
}

// TestWorkerEndsWithItsServer kills the server while a worker waits for a daemon
// that has not even read its request: the worker reads no socket and sees no end
// of it, but it dies.
func TestWorkerEndsWithItsServer(t *testing.T) {
	n := newNode(t, "--standalone", "--probe-timeout=60s").start()
	v, d := n.newMoody(0)
	n.expect("healthy", v.request())
	d.deaf.Store(true)
	_, err := os.Stat(v.place(podUID))
	must(t, err)
	answered := n.asyncCall(v.request())
	d.asked()
	workers := n.workers()
	if len(workers) == 0 {
		t.Fatal("there is no worker")
	}
	n.kill()
	<-answered
	eventually(t, "all workers end", func() bool {
		return !slices.ContainsFunc(workers, func(pid int) bool { return !slices.Contains([]string{"", "Z"}, state(pid)) })
	})
}

// TestBlockBackingGone asks the disk itself: what was read before is still in
// memory.
func TestBlockBackingGone(t *testing.T) {
	n := newNode(t, "--standalone").start()
	v := n.newVolume("block", "truncated")
	n.expect("healthy", v.request())
	disk, err := os.Open(v.device)
	must(t, err)
	defer disk.Close()
	block := make([]byte, 4096)
	_, err = disk.ReadAt(block, 0)
	must(t, err)
	must(t, os.Truncate(v.image, 0))
	if _, err := disk.ReadAt(block, 0); err != nil {
		t.Fatalf("the cache does not answer: %v", err)
	}
	before := n.table()
	for range 2 {
		n.expect("abnormal", v.request(), "IOError", "read the device", "EIO")
		n.sameTable(before)
	}
}
