package workerops

import "time"

// HoldersQuery asks which mounts and processes hold superblocks and block devices.
// One walk over all processes serves any number of them.
type HoldersQuery struct {
	// Superblocks are the numbers that mountinfo shows: files on btrfs show
	// others.
	Superblocks []Number
	// Devices are block devices: processes that have a node of one open hold it
	// and not the superblock that the node lies on.
	Devices []Number
	// Budget bounds the walk; what was found until then is the answer.
	Budget time.Duration
}

// Number is a device number.
type Number struct{ Major, Minor uint32 }

// HoldersAnswer lists the holders. The worker itself, its server and the server's
// other workers are not among them.
//
// Not looked for: mapped files whose descriptor is closed, descriptors and
// directories that a thread does not share with its process, swap files, and mounts
// in namespaces without a process. An answer without holders says that none of the
// mount tables, descriptors, working and root directories that could be read names
// the superblock or device.
type HoldersAnswer struct {
	Superblocks map[Number]Held
	Devices     map[Number]Held
	// Unknown counts open files on mounts that are in no mount table that was read,
	// and whose superblock could not be told without asking its filesystem.
	Unknown int
	// Unseen counts processes that could not be examined, or not entirely: of those
	// in a mount namespace with another owner than the host's, the mounts are not read.
	Unseen int
	// Cut is true when there may be more: the budget or a limit was reached, or
	// the kernel did not show all mounts of a namespace.
	Cut bool
}

// Held lists what holds one superblock or device, at most holdersLimit of each
// kind.
type Held struct {
	Mounts    []HeldMount
	Processes []HeldBy
}

// HeldMount is one mount of a superblock.
type HeldMount struct {
	// Namespace is the inode number of the mount namespace.
	Namespace uint64
	// Path is as seen from the root of that namespace.
	Path string
	// PID is a process in the namespace, Cgroup the content of its cgroup file.
	PID    int
	Cgroup string
}

// HeldBy is one process that holds a superblock or device.
type HeldBy struct {
	PID int
	// Command is the process's own choice, and any bytes.
	Command string
	How     How
	// Cgroup is the content of the process's cgroup file.
	Cgroup string
}

// How is a set of the ways in which a process holds something.
type How uint8

// The ways to hold something.
const (
	HowFile How = 1 << iota
	HowWorkingDirectory
	HowRoot
	// HowDevice is an open node of a block device.
	HowDevice
	// HowDetached comes with others: the mount is in no mount table, as after a
	// lazy umount.
	HowDetached
)

// holdersLimit bounds the mounts and the processes that are named for one
// superblock.
const holdersLimit = 64

func holders(q HoldersQuery) (HoldersAnswer, error) {
	proc, err := openProcfs()
	if err != nil {
		return HoldersAnswer{}, err
	}
	defer proc.close()
	s := newScan(proc, q)
	if s.owners, err = newOwners(); err != nil {
		return HoldersAnswer{}, err
	}
	return s.run(q.Budget)
}
