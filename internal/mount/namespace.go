package mount

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NamespaceID returns the unique id of an open mount namespace (ioctl_nsfs(2), Linux
// 6.11); 0 when the kernel has none.
func NamespaceID(fd int) uint64 {
	var id uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.NS_GET_MNTNS_ID, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0
	}
	return id
}

// Enter brings the calling thread, which has to be locked to its goroutine, into a
// mount namespace. It gives the thread a root and a working directory of its own,
// without which the kernel does not let it (setns(2)).
func Enter(namespace *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace %s: %w", namespace.Name(), err)
	}
	return nil
}
