package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// FreePorts finds so many ports of 127.0.0.1 in a row, which are nobody else's until this process
// ends, and returns the first. They lie below
// the range from which the kernel serves outgoing connections: a client that knocks at a
// server that is down would sooner or later be given that very port, and be connected with
// itself.
func FreePorts(count int) (first int, err error) {
	for range 100 {
		if first = 20000 + rand.IntN(10000); free(first, count) && reserve(first, count) {
			return first, nil
		}
	}
	return 0, errors.New("find free ports: none between 20000 and 30000")
}

func free(first, count int) bool {
	for port := first; port < first+count; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

// reserve takes ports for this process. A program listens seconds after its port was found, and other
// tests look for ports meanwhile.
func reserve(first, count int) bool {
	reserved := make([]net.Listener, 0, count)
	for port := first; port < first+count; port++ {
		l, err := net.Listen("unix", fmt.Sprintf("@node-healer-tests-port-%d", port)) // of this network, as ports are
		if err != nil {
			for _, l := range reserved {
				_ = l.Close()
			}
			return false
		}
		reserved = append(reserved, l)
	}
	keep.Lock()
	defer keep.Unlock()
	keep.reserved = append(keep.reserved, reserved...)
	return true
}

// keep has what must stay open as long as this process lives.
var keep struct {
	sync.Mutex
	reserved []net.Listener
}
