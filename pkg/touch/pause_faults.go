//go:build faults

package touch

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// pause stops the worker at each instant that NODE_HEALER_PAUSE lists, until
// somebody continues it.
func pause(instant string) {
	if slices.Contains(strings.Split(os.Getenv("NODE_HEALER_PAUSE"), ","), instant) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}
