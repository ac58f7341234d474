package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
)

func TestDial(t *testing.T) {
	n, root := newNode(t)
	done(t, os.MkdirAll(root+"/plugins/a", 0o700))
	listen(t, root+"/plugins/a/csi.sock")
	conn, err := n.Dial(within(t, time.Minute), root+"/plugins/a/csi.sock")
	done(t, err)
	done(t, conn.Close())

	outside := t.TempDir() + "/s"
	listen(t, outside)
	done(t, os.Symlink(outside, root+"/plugins/link"))
	done(t, os.Symlink("a", root+"/plugins/directory"))
	done(t, os.WriteFile(root+"/plugins/file", nil, 0o600))
	for socket, want := range map[string]error{
		outside:                                 operation.ErrRefused,
		root:                                    operation.ErrRefused,
		root + "x/s":                            operation.ErrRefused,
		root + "/../" + filepath.Base(root):     syscall.EXDEV,
		root + "/plugins/link":                  syscall.ELOOP,
		root + "/plugins/directory/csi.sock":    syscall.ELOOP,
		root + "/plugins/file":                  syscall.ENOTSOCK,
		root + "/plugins/none":                  os.ErrNotExist,
		root + "/plugins/a/csi.sock/not-beside": syscall.ENOTDIR,
	} {
		if _, err := n.Dial(within(t, time.Minute), socket); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", socket, err, want)
		}
	}
}

// What is mounted beneath kubelet's directory may be a volume.
func TestDialCrossesNoMount(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	done(t, os.MkdirAll(root+"/plugins/a", 0o700))
	put(t, root+"/plugins/a")
	t.Cleanup(func() { done(t, unix.Unmount(root+"/plugins/a", 0)) })
	listen(t, root+"/plugins/a/s")
	if _, err := n.Dial(within(t, time.Minute), root+"/plugins/a/s"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a socket on a mount: %v", err)
	}
}

// A driver's directory that is mounted on itself, as kubelet's root is by a driver's pod, is
// that directory; another one of the node's disk that is mounted there is not looked at.
func TestDialADirectoryMountedOnItself(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	done(t, os.MkdirAll(root+"/plugins/a", 0o700))
	done(t, os.MkdirAll(root+"/elsewhere", 0o700))
	onItself(t, root+"/plugins")
	onItself(t, root+"/plugins/a")
	listen(t, root+"/plugins/a/csi.sock")
	conn, err := n.Dial(within(t, time.Minute), root+"/plugins/a/csi.sock")
	done(t, err)
	done(t, conn.Close())

	bind(t, root+"/elsewhere", root+"/plugins/a")
	listen(t, root+"/plugins/a/other")
	if _, err := n.Dial(within(t, time.Minute), root+"/plugins/a/other"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a socket on a mount: %v", err)
	}
}

// onItself binds a directory on itself, as a pod with Bidirectional propagation has the node do.
func onItself(t *testing.T, dir string) {
	t.Helper()
	bind(t, dir, dir)
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	done(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
	t.Cleanup(func() { done(t, unix.Unmount(to, unix.MNT_DETACH)) })
}

// A driver that accepts no connection makes nobody wait.
func TestDialAFullBacklog(t *testing.T) {
	n, root := newNode(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	done(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	done(t, unix.Bind(fd, &unix.SockaddrUnix{Name: root + "/s"}))
	done(t, unix.Listen(fd, 0))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 3 {
		var conn net.Conn
		if conn, err = n.Dial(ctx, root+"/s"); err != nil {
			break
		}
		defer conn.Close()
	}
	if !errors.Is(err, syscall.EAGAIN) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	done(t, err)
	t.Cleanup(func() { _ = l.Close() })
}
