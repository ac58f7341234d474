package ops

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// From a network in which there is nothing, the host's is reached, and the answers are
// the host's.
func TestReachFromAnotherNetwork(t *testing.T) {
	needsRoot(t)
	home := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	for _, ip := range []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback} {
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: ip})
		must(t, err)
		defer listener.Close()
		q := ReachQuery{IP: ip, Port: listener.Addr().(*net.TCPAddr).Port, Namespace: home}
		elsewhere := func(q ReachQuery) error {
			answer := make(chan error)
			go func() {
				runtime.LockOSThread() // and ended with the goroutine
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					answer <- err
					return
				}
				_, err := reach(q)
				answer <- err
			}()
			return <-answer
		}
		if err := elsewhere(q); err != nil {
			t.Errorf("%s: %v", ip, err)
		}
		alone := q
		alone.Namespace = ""
		if err := elsewhere(alone); err == nil {
			t.Errorf("%s was reached from a network in which there is nothing", ip)
		}
		must(t, listener.Close())
		if refused := elsewhere(q); errnoOf(refused) != syscall.ECONNREFUSED {
			t.Errorf("nobody listens: %v", refused)
		}
		q.Namespace = t.TempDir() + "/none"
		if missing := elsewhere(q); missing == nil || errnoOf(missing) == syscall.ENOENT {
			t.Errorf("no such namespace: %v", missing)
		}
	}
}
