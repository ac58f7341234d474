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

// reach connects, and hangs up when the process ends. Only an errno of connect(2) tells of the address: no
// other one is wrapped.
func reach(q ReachQuery) (none struct{}, _ error) {
	if q.Namespace != "" {
		runtime.LockOSThread() // for good
		namespace, err := os.Open(q.Namespace)
		if err == nil {
			defer namespace.Close()
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			return none, fmt.Errorf("enter the network namespace %s: %v", q.Namespace, err) //nolint:errorlint // see above
		}
	}
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if len(q.IP) == 4 {
		to = &unix.SockaddrInet4{Addr: [4]byte(q.IP), Port: q.Port}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(q.IP), Port: q.Port}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return none, fmt.Errorf("socket: %v", err) //nolint:errorlint // see above
	}
	defer unix.Close(fd)
	// connect(2) goes on when a signal interrupts it.
	for err = unix.Connect(fd, to); errors.Is(err, unix.EINTR) || errors.Is(err, unix.EALREADY); {
		err = unix.Connect(fd, to)
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		return none, fmt.Errorf("connect: %w", err)
	}
	return none, nil
}
