package ops

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ReachQuery asks whether a TCP address can be reached. The worker knows no names: what
// looks them up is as large as the rest of it.
type ReachQuery struct {
	// IP has 4 or 16 bytes.
	IP   []byte
	Port int
	// Namespace is the file of the network namespace to ask from; empty: the worker's own.
	Namespace string
}

// reach connects, and hangs up when the process ends.
func reach(q ReachQuery) (struct{}, error) {
	if q.Namespace != "" {
		runtime.LockOSThread() // for good
		if err := enterNetwork(q.Namespace); err != nil {
			// An errno would tell of the address.
			return struct{}{}, fmt.Errorf("enter the network namespace %s: %v", q.Namespace, err) //nolint:errorlint // see above
		}
	}
	return struct{}{}, connect(q)
}

func enterNetwork(namespace string) error {
	f, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

func connect(q ReachQuery) error {
	family := unix.AF_INET6
	if len(q.IP) == 4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %v", err) //nolint:errorlint // the errno is not the address's
	}
	defer unix.Close(fd)
	var to unix.Sockaddr
	if family == unix.AF_INET {
		to = &unix.SockaddrInet4{Addr: [4]byte(q.IP), Port: q.Port}
	} else {
		to = &unix.SockaddrInet6{Addr: [16]byte(q.IP), Port: q.Port}
	}
	// connect(2) goes on when a signal interrupts it.
	for err = unix.Connect(fd, to); errors.Is(err, unix.EINTR) || errors.Is(err, unix.EALREADY); {
		err = unix.Connect(fd, to)
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}
