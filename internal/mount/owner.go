package mount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Owner identifies the user namespace that owns a mount namespace. In a mount
// namespace that a pod's user made with a user namespace of its own, the mounts, their
// number, their peer groups and the locks are that user's choice, so such a namespace
// must be neither read nor entered. Its owner is not under that
// user's control.
type Owner struct{ dev, inode uint64 }

// OwnerOf returns the owner of an open mount namespace (ioctl_nsfs(2), NS_GET_USERNS,
// Linux 4.9). It is an error to ask for one above our own.
func OwnerOf(namespace int) (Owner, error) {
	fd, err := RetryEINTR(func() (int, error) { return unix.IoctlRetInt(namespace, unix.NS_GET_USERNS) })
	if err != nil {
		return Owner{}, fmt.Errorf("ask who owns the mount namespace: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Owner{}, fmt.Errorf("look at the owner of the mount namespace: %w", err)
	}
	return Owner{uint64(st.Dev), st.Ino}, nil // 32 bits on mips
}

// OwnOwner returns the owner of the mount namespace of the calling thread, which in a
// worker is the host's.
func OwnOwner() (Owner, error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return Owner{}, err
	}
	defer own.Close()
	return OwnerOf(int(own.Fd()))
}

// Owns reports whether a mount namespace has this owner. The kernel refuses to name an
// owner above our own (EPERM), which is another one. Any other error, as of a process
// without free descriptors, is no answer: who took that for "no" would umount something
// without having looked at what else goes with it.
func (o Owner) Owns(namespace int) (bool, error) {
	got, err := OwnerOf(namespace)
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	return got == o, err
}

// IsInode reports whether an open namespace has the given inode number.
func IsInode(namespace int, inode uint64) bool {
	var st unix.Stat_t
	return unix.Fstat(namespace, &st) == nil && st.Ino == inode
}

// InodeOf reads the inode number of a mount namespace from the text of its link, as in
// mnt:[4026531841].
func InodeOf(link string) (uint64, error) {
	inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "mnt:["), "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q names no mount namespace: %w", link, err)
	}
	return inode, nil
}
