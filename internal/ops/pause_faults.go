//go:build faults

package ops

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// withoutBeneath has a new kernel healed as one below Linux 6.5.
func withoutBeneath() bool { return os.Getenv("NODE_HEALER_WITHOUT_BENEATH") != "" }

// pause stops the worker at each instant that NODE_HEALER_PAUSE lists, until
// a test continues it.
func pause(instant string) {
	if slices.Contains(strings.Split(os.Getenv("NODE_HEALER_PAUSE"), ","), instant) {
		// To this thread: it stops before it goes on, whatever the others do.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	}
}
