package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePorts finds so many ports of 127.0.0.1 in a row, and returns the first. They lie below
// the range from which the kernel serves outgoing connections: a client that knocks at a
// server that is down would sooner or later be given that very port, and be connected with
// itself.
func FreePorts(count int) (first int, err error) {
	for range 100 {
		if first = 20000 + rand.IntN(10000); free(first, count) {
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
