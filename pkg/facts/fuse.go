package facts

import (
	"syscall"
	"time"
)

// Disconnected reports whether a FUSE connection that answers with an errno has no daemon any
// more, and never will: ECONNABORTED is for one that was aborted (FUSE_ABORT_ERROR).
func Disconnected(e syscall.Errno) bool {
	return e == syscall.ENOTCONN || e == syscall.ECONNABORTED
}

// MayBeCovered is the one exception: a mount that is covered stays below for as long as the
// mount lives that covers it, so only what is for good counts, as of a daemon that died. An
// abort is somebody's act, who may be about to mount anew.
func MayBeCovered(e syscall.Errno) bool { return e == syscall.ENOTCONN }

// FUSEDaemon is one process that has the device of a connection open.
type FUSEDaemon struct {
	// Connection is the connection's name in fusectl.
	Connection uint64
	PID        int
	// Command is the process's own choice, and any bytes.
	Command string
	// State is the letter of proc_pid_stat(5).
	State byte
	// Started is in time since the boot.
	Started time.Duration
	Workload
}

// Stopped reports whether the process was stopped, by a signal or a debugger.
func (d FUSEDaemon) Stopped() bool { return d.State == 'T' || d.State == 't' }

// FUSEDaemons are the processes that serve a FUSE superblock.
type FUSEDaemons struct {
	Processes []FUSEDaemon
	// Peers are with whom they are connected; what cannot be told in time says nothing.
	Peers []Peer
	// Untold is true where the kernel does not say which process serves which
	// connection (below about Linux 6.16).
	Untold bool
	// Unseen counts processes that may serve it and could not be examined: any, as long as
	// no daemon of the connection is known, else those of the same pod or cgroup.
	Unseen int
	// Cut is true when there may be more: the walk over all processes was cut short.
	Cut bool
}

// Peer is the other end of a TCP connection of a daemon: mostly its server.
type Peer struct {
	// Address is its IP address and port.
	Address string
	// Connected is false as long as it accepted no connection.
	Connected bool
	// Retransmits is how often the kernel has sent the same again, without any answer since.
	Retransmits int
}

// AbortPlan names a FUSE connection by a mount of it, and what belongs to the
// volume. An abort ends the connection for all its mounts, with what they still have to
// write.
type AbortPlan struct {
	// Mount is topmost at its path.
	Mount Mount
	// Paths are the volume's mount points, Pods the UIDs of the pods that use it: no
	// other mount of the superblock may be on the node.
	Paths, Pods []string
	// CheckOnly aborts nothing.
	CheckOnly bool
}

// Lookup is what a FUSE daemon answered for a name that cannot exist: it answers for its root
// from memory, and for such a name it has to ask its storage.
type Lookup struct {
	Asked bool
	// TimedOut is true when there was no answer within a time.
	TimedOut bool
	Within   time.Duration
	// Errno is ENOENT where all is well, and 0 where such a name exists.
	Errno syscall.Errno
	// Earlier is true for the answer to an earlier question, as the daemon cannot be asked now.
	Earlier bool
}

// NoSuchName reports whether the storage said that there is no such name.
func (l Lookup) NoSuchName() bool { return l.Asked && !l.TimedOut && l.Errno == syscall.ENOENT }
