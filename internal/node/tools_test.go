package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReach(t *testing.T) {
	n, _ := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	done(t, err)
	address := l.Addr().String()
	done(t, n.Reach(within(t, time.Minute), address))
	done(t, l.Close())
	if err := n.Reach(within(t, time.Minute), address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if err := n.Reach(within(t, time.Minute), "[fe80::1%lo]:1"); err == nil || !strings.Contains(err.Error(), "not asked") {
		t.Errorf("an address of one interface: %v", err)
	}
	if err := n.Reach(within(t, 4*time.Second), silent(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

// silent returns an address that does not answer: a listener whose backlog is full.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	done(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	done(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	done(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	done(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 3 {
		if conn, err := net.DialTimeout("tcp", address, 100*time.Millisecond); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
	}
	return address
}
