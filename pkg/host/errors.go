package host

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
)

// ErrRefused marks an error that means "must not", not "went wrong".
var ErrRefused = worker.ErrRefused

// ErrnoName returns the name of an errno, as in "ENOTCONN".
func ErrnoName(e syscall.Errno) string { return unix.ErrnoName(e) }
