package mount

import (
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
