package workerops

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HoldersQuery asks who holds superblocks and block devices. One walk over all
// processes serves any number of them.
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

// HoldersAnswer says who holds what was asked for. The worker itself, its
// server and the server's other workers are not among them.
type HoldersAnswer struct {
	Superblocks map[Number]Held
	Devices     map[Number]Held
	// Swaps are the paths of swap files and devices.
	Swaps []string
	// Unknown counts open files on mounts that no mount namespace has any more
	// and whose superblock could not be told without asking it.
	Unknown int
	// Unseen counts processes that could not be looked at, or not entirely: of those
	// in a mount namespace with another owner than the host's, the mounts are not read.
	Unseen int
	// Cut is true when there may be more: the budget or a limit was reached, or
	// the kernel did not show all mounts of a namespace.
	Cut bool
}

// Held lists who holds one superblock or device, at most holdersLimit of each
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
	// PID is a process that lives in the namespace, 0 when none does.
	PID int
	// Cgroup is that process's cgroup file.
	Cgroup string
}

// HeldBy is one process that holds a superblock or device.
type HeldBy struct {
	PID int
	// Command is the process's own choice, and any bytes.
	Command string
	How     How
	// Cgroup is the process's cgroup file.
	Cgroup string
}

// How says by what a process holds something.
type How uint8

// The ways to hold something.
const (
	HowFile How = 1 << iota
	HowWorkingDirectory
	HowRoot
	HowMapping
	// HowDevice is an open node of a block device.
	HowDevice
	// HowDetached comes with others: the mount is in no mount namespace any
	// more, as after a lazy umount.
	HowDetached
)

// String gives the words of messages, as in "open file, cwd".
func (h How) String() string {
	var words []string
	for _, w := range [...]struct {
		how  How
		word string
	}{
		{HowFile, "open file"},
		{HowWorkingDirectory, "cwd"},
		{HowRoot, "root"},
		{HowMapping, "mapped file"},
		{HowDevice, "open device"},
		{HowDetached, "unmounted"},
	} {
		if h&w.how != 0 {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, ", ")
}

// holdersLimit bounds the mounts and the processes that are named for one
// superblock.
const holdersLimit = 64

func holders(q HoldersQuery) (HoldersAnswer, error) {
	proc, err := openDir("/proc")
	if err != nil {
		return HoldersAnswer{}, fmt.Errorf("procfs: %w", err)
	}
	defer unix.Close(proc)
	s := newScan(proc, q)
	if s.owners, err = newOwners(); err != nil {
		return HoldersAnswer{}, err
	}
	return s.run(q.Budget)
}
