package workerops

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// Mounts of NFS share a superblock, also one that was mounted anew after the other's
// directory was made anew on the server. So the number of the superblock does not
// tell the dead mount from the live one: only its own root does, asked right before.

// stale refuses a mount at the leaf that is not the given one, not of NFS or of that
// superblock, or whose root the server knows.
func (l leaf) stale(m MountRef, superblock Number) error {
	fd, top, err := l.top()
	switch {
	case errors.Is(err, unix.ESTALE):
		// A walk to it asks the server, once the kernel knows that the directory has
		// no name any more, and there is no other way to it than a walk.
		return refuse("the kernel lets nobody come to it any more: %v", err)
	case err != nil:
		return fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !top.Same(m) {
		return refuse("%s is at the mount point now", top)
	}
	entry, err := l.self.entry(m)
	if err != nil {
		return err
	}
	if dev, ok := parseNumber(entry.Dev); !ok || dev != superblock || !isNFS(entry.FSType) {
		return refuse("another filesystem is at the mount point now")
	}
	return staleTwice(fd)
}

// staleTwice asks the server about a directory, twice. Only ESTALE says that it is
// gone: whatever else goes wrong may pass.
func staleTwice(fd int) error {
	for range 2 {
		switch errno := answers(fd); errno {
		case unix.ESTALE:
		case 0:
			return refuse("it answers again")
		default:
			return refuse("only what answers ESTALE is replaced, and this answers %q", errno)
		}
	}
	return nil
}

func isNFS(fsType string) bool { return fsType == "nfs" || fsType == "nfs4" }

// copyOf is true for what propagation made of the dead mount. Of NFS another mount of
// the same superblock may be good; a copy is in the peer group of its original.
func copyOf(dead mountinfo.Entry, superblock Number) func(mountinfo.Entry) bool {
	return func(e mountinfo.Entry) bool {
		number, ok := parseNumber(e.Dev)
		if !ok || number != superblock {
			return false
		}
		group := shared(dead)
		return !isNFS(e.FSType) || group != "" && (shared(e) == group || optional(e, "master:") == group)
	}
}
