package node

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHolderIsAliveDespiteSignals: Go's scheduler interrupts threads by SIGURG, also one
// that asks whether a container's process lives.
func TestHolderIsAliveDespiteSignals(t *testing.T) {
	h := Hold(os.Getpid())
	defer h.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
			}
		}
	}()
	for range 100_000 {
		if err := h.Alive(); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
}
