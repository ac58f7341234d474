package workerops

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mount namespace belongs to the user namespace in which it was made. In one that
// a pod's user made with a user namespace of its own, the mounts, their number, the
// groups that they share events with and the locks are that user's choice, so such
// a namespace is neither read nor entered. It is told by its owner, which is the
// one thing that nobody in there can choose.

// owner identifies the user namespace that owns a mount namespace.
type owner struct{ dev, inode uint64 }

// ownerOf asks which user namespace owns an open mount namespace
// (ioctl_nsfs(2), NS_GET_USERNS, Linux 4.9). One that is not ours to see, because
// it is above our own, is an error.
func ownerOf(namespace int) (owner, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.IoctlRetInt(namespace, unix.NS_GET_USERNS) })
	if err != nil {
		return owner{}, fmt.Errorf("ask who owns the mount namespace: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return owner{}, fmt.Errorf("look at the owner of the mount namespace: %w", err)
	}
	return owner{st.Dev, st.Ino}, nil
}

// hostOwner gives the owner of the mount namespace of the calling thread, which in
// a worker is the host's.
func hostOwner() (owner, error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return owner{}, err
	}
	defer own.Close()
	return ownerOf(int(own.Fd()))
}

// owns is true for a mount namespace with this owner.
func (o owner) owns(namespace int) bool {
	got, err := ownerOf(namespace)
	return err == nil && got == o
}

// isInode is true for an open namespace with the given inode number.
func isInode(namespace int, inode uint64) bool {
	var st unix.Stat_t
	return unix.Fstat(namespace, &st) == nil && st.Ino == inode
}

// inodeOf reads the inode number of a namespace from the text of its link, as in
// mnt:[4026531841].
func inodeOf(link string) (uint64, error) {
	inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "mnt:["), "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q names no mount namespace: %w", link, err)
	}
	return inode, nil
}

// owners remembers which mount namespaces have the host's owner.
type owners struct {
	host  owner
	known map[uint64]bool // by inode number
}

func newOwners() (*owners, error) {
	host, err := hostOwner()
	return &owners{host: host, known: map[uint64]bool{}}, err
}

// of is true for the namespace that a process, given by its directory in an open
// procfs, is in. An error says that it is in that one no more.
func (o *owners) of(proc int, dir string, inode uint64) (bool, error) {
	if owned, known := o.known[inode]; known {
		return owned, nil
	}
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(proc, dir+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if !isInode(fd, inode) {
		return false, errEnded
	}
	o.known[inode] = o.host.owns(fd)
	return o.known[inode], nil
}
