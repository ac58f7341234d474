package host

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// A program of the image finds the server's files, one of the host the host's.
func TestWhereAProgramRuns(t *testing.T) {
	realKernel(t)
	dir := t.TempDir()
	done(t, os.WriteFile(dir+"/where", []byte("image"), 0o600))
	theHost := namespaceWith(t, dir, func() { done(t, os.WriteFile(dir+"/where", []byte("host"), 0o600)) })
	n, root := newNode(t, func(c *Config) { c.Pool = newPool(t, time.Minute, func(w *worker.Config) { w.Namespace = theHost }) })
	for _, onHost := range []bool{false, true} {
		p := shell("cat " + dir + "/where; echo; readlink /proc/self/cwd; grep -c node-healer-program /proc/self/cgroup; ls /proc/self/fd")
		p.OnHost = onHost
		r, err := n.RunProgram(within(t, time.Minute), p)
		want := map[bool]string{true: "host", false: "image"}[onHost] + "\n/\n1\n0\n1\n2\n3\n" // 3 is the directory
		if err != nil || string(r.Output) != want {
			t.Errorf("on the host %v: %q, want %q, %v", onHost, r.Output, want, err)
		}
	}
	noneLeft(t, root)
}

// namespaceWith returns a mount namespace in which a directory is another one.
func namespaceWith(t *testing.T, dir string, fill func()) (ns *os.File) {
	t.Helper()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and ended with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("none", dir, "tmpfs", 0, "")
		}
		if err == nil {
			fill()
			ns, err = os.Open("/proc/thread-self/ns/mnt")
		}
		made <- err
	}()
	done(t, <-made)
	t.Cleanup(func() { done(t, ns.Close()) })
	return ns
}

// The kernel cannot end a program that waits for a daemon which has read its request. It
// keeps its worker, and whoever runs the same once more is told at once.
func TestRunProgramThatCannotBeEnded(t *testing.T) {
	everyWay(t, func(t *testing.T, _ bool) {
		n, root := newNode(t, func(c *Config) { c.Pool = newPool(t, time.Second/5) })
		end := hang(t, root+"/hung")
		p := shell("cat " + root + "/hung/f")
		_, err := n.RunProgram(within(t, time.Second/2), p)
		left := ended(err)
		if left == nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it was ended: %v", err)
		}
		began := time.Now()
		if _, err := n.RunProgram(within(t, time.Minute), p); err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("once more, after %s: %v", time.Since(began), err)
		}
		other := shell("echo other")
		if r, err := n.RunProgram(within(t, time.Minute), other); err != nil || !strings.HasPrefix(string(r.Output), "other") {
			t.Errorf("another one: %+v, %v", r, err)
		}
		end()
		<-left
		noneLeft(t, root)
	})
}
