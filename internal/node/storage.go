package node

import "github.com/csi-addons/node-healer/pkg/facts"

// storage is what a probe touches: a superblock, a block device, or a device node,
// which shares the superblock of devtmpfs with all others.
type storage struct {
	dev  facts.Dev
	root string
}

// The storages that are the kernel's own.
var (
	// namespaces are the mount namespaces of containers.
	namespaces = storage{root: "/proc/*/ns/mnt"}
	// containerWalk and daemonWalk are the walks over all processes that find containers and
	// FUSE daemons, abortWalk the one that finds all mounts of one connection.
	containerWalk = storage{root: "/proc/*/cgroup"}
	daemonWalk    = storage{root: "/proc/*/fdinfo"}
	abortWalk     = storage{root: "/proc/*/mountinfo"}
	// mountingWalk is the walk that finds who is about to mount something.
	mountingWalk = storage{root: "/proc/*/cmdline"}
	fusectl      = storage{root: "/sys/fs/fuse/connections"}
)

// lookups is in the storage of questions for a name, one for each FUSE connection.
const lookups = "names"

func storageOf(m facts.Mount) storage {
	s := storage{dev: m.Dev}
	if m.MayBeNode() {
		s.root = m.Root
	}
	return s
}

// storageUnder returns what a path lies on.
func storageUnder(table Table, p string) storage {
	parentMount, _ := table.ParentMount(p)
	return storageOf(parentMount)
}

// sameView reports whether mounts of one superblock show the same directory of it: an
// export may share its superblock with another, and be gone alone. On NFS only the very
// same mount is sure to.
func sameView(a, b facts.Mount) bool {
	if facts.IsNFS(a.FSType) && !a.Same(b) {
		return false
	}
	return a.Dev == b.Dev && a.Root == b.Root && a.FSType == b.FSType && a.Source == b.Source
}
