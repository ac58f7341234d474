package facts

import (
	"syscall"
	"testing"
)

func TestDisconnected(t *testing.T) {
	for errno, want := range map[syscall.Errno]struct{ disconnected, covered bool }{
		0: {}, syscall.EIO: {}, syscall.ESTALE: {}, syscall.ECONNREFUSED: {}, syscall.ENODEV: {},
		syscall.ENOTCONN:     {true, true},
		syscall.ECONNABORTED: {true, false},
	} {
		if Disconnected(errno) != want.disconnected || MayBeCovered(errno) != want.covered {
			t.Errorf("%s: %v, %v", ErrnoName(errno), Disconnected(errno), MayBeCovered(errno))
		}
	}
}
