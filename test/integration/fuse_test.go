package integration

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestFuse stops or kills the daemon of a volume.
func TestFuse(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(fs *faultfs.FS)
		says   []string
	}{
		"the daemon is killed":                 {(*faultfs.FS).Kill, []string{"Disconnected", "ENOTCONN"}},
		"the connection is aborted":            {(*faultfs.FS).Abort, []string{"Disconnected", "ENOTCONN"}},
		"the daemon stands still":              {hung((*faultfs.FS).Stop), []string{"NotResponding", "the FUSE daemon gave no answer within "}},
		"the daemon reads and does not answer": {hung(func(fs *faultfs.FS) { fs.Hang() }), []string{"NotResponding", "the FUSE daemon gave no answer within "}},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			v, fs := n.NewFUSEVolume("fuse", faultfs.Config{})
			n.Expect("healthy", v.Request())
			c.breaks(fs)
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), c.says...)
			}
			n.SameTable(before)
			next.untouched()
		})
	}
}

// hung breaks a daemon that two applications are waiting for.
func hung(breaks func(fs *faultfs.FS)) func(fs *faultfs.FS) {
	return func(fs *faultfs.FS) {
		breaks(fs)
		fs.Ask()
		fs.Ask()
		fs.AwaitWaiting(2)
	}
}

// TestFuseErrno reports the errno that a daemon answers; the volume is healthy again
// when the daemon is.
func TestFuseErrno(t *testing.T) {
	for errno, reason := range map[syscall.Errno]string{
		unix.EACCES: "PermissionDenied", unix.EPERM: "PermissionDenied",
		unix.ESTALE:   "StaleFileHandle",
		unix.ENOTCONN: "Disconnected",
		unix.EIO:      "IOError", unix.ENXIO: "IOError", unix.ENODEV: "IOError", unix.ENOENT: "IOError",
		unix.EBUSY: "IOError", unix.EROFS: "IOError", unix.ENOSPC: "IOError", unix.EDQUOT: "IOError",
		unix.ETIMEDOUT: "IOError", unix.EHOSTDOWN: "IOError", unix.EREMOTEIO: "IOError", unix.EUCLEAN: "IOError",
	} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			next := newNeighbour(n)
			v, fs := n.NewFUSEVolume("fuse", faultfs.Config{})
			n.Expect("healthy", v.Request())
			before := n.Table()
			fs.Fail(errno)
			for range 2 {
				n.Expect("abnormal", v.Request(), reason, unix.ErrnoName(errno))
			}
			next.untouched()
			fs.Lift()
			n.Expect("healthy", v.Request())
			n.SameTable(before)
		})
	}
}

// TestFuseFailsInOneThing sees what is hidden until it is asked for: the
// kernel may answer for attributes from its cache, and a daemon that still has
// them may be unable to open anything.
func TestFuseFailsInOneThing(t *testing.T) {
	for name, c := range map[string]struct {
		kind faultfs.Kind
		says string
	}{
		"opening the root":      {faultfs.Open, "open"},
		"attributes, in memory": {faultfs.Getattr, "statx"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v, fs := n.NewFUSEVolume("lost", faultfs.Config{Valid: time.Hour})
			n.Expect("healthy", v.Request())
			fs.Fail(unix.EIO, c.kind)
			if _, err := os.Stat(v.MountPoint()); err != nil {
				t.Fatalf("the cache does not answer: %v", err)
			}
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), "IOError", "EIO", c.says)
			}
			n.SameTable(before)
			fs.Lift()
			n.Expect("healthy", v.Request())
		})
	}
}

// TestStuckWorker asks repeatedly for a volume at which a worker cannot be ended, also
// by ever new paths in it: that costs one process, other volumes are served, and the
// server still ends.
func TestStuckWorker(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=3s", "--slow-answer=3s").Start()
	next := newNeighbour(n)
	v, fs := n.NewFUSEVolume("stuck", faultfs.Config{})
	n.Expect("healthy", v.Request())
	fs.Hang()
	for range 5 {
		n.Expect("abnormal", v.Request(), "NotResponding")
		next.untouched()
	}
	for i := range 5 {
		beneath := v.Request()
		beneath.VolumePath += fmt.Sprintf("/%d/directory", i)
		if _, err := n.Call(beneath); status.Code(err) != codes.Unknown {
			t.Errorf("a path in it: %v", err)
		}
		next.untouched()
	}
	var stuck []int
	harness.Eventually(t, "one worker waits uninterruptibly for the volume, and no second one", func() bool {
		stuck = uninterruptible(n)
		return len(stuck) == 1
	})
	server := n.PID()
	n.Stop()
	if harness.State(server) != "" {
		t.Error("the server did not end")
	}
	fs.Abort()
	harness.Eventually(t, "the stuck worker ends", func() bool { return !slices.ContainsFunc(stuck, harness.Lives) })
}

// TestWorkerEndsWithItsServer kills the server while a worker waits for a daemon
// that has not even read its request: the worker reads no socket and sees no end
// of it, but it dies.
func TestWorkerEndsWithItsServer(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=60s").Start()
	v, fs := n.NewFUSEVolume("deaf", faultfs.Config{})
	n.Expect("healthy", v.Request())
	fs.Stop()
	call := n.Begin(v.Request())
	fs.AwaitWaiting(1)
	workers := n.Workers()
	if len(workers) == 0 {
		t.Fatal("there is no worker")
	}
	n.Kill()
	call.Answer()
	harness.Eventually(t, "all workers end", func() bool { return !slices.ContainsFunc(workers, harness.Lives) })
}
