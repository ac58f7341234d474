package facts

import (
	"path"
	"strconv"
	"syscall"
	"time"
)

// Workload names the pod and the container that a process belongs to.
type Workload struct {
	// PodUID is empty outside of pods.
	PodUID string
	// ContainerID is empty where the runtime's directory names none.
	ContainerID string
	// Dir is the runtime's cgroup directory, right below the pod's; outside of pods
	// the whole cgroup path.
	Dir string
}

// Container stands for the processes of one cgroup directory of a runtime, and of those
// below it.
type Container struct {
	Workload
	// PID is the oldest of its processes whose mount namespace has the same owner as
	// the host's, Namespace the inode number of that: it is the namespace that the
	// runtime made. Both are 0 where Foreign, Sandbox or Unplaced says why.
	PID       int
	Namespace uint64
	// Started is when the oldest process did, in time since the boot.
	Started time.Duration
	// Foreign is true when no process has such a namespace, as in a pod with
	// hostUsers: false.
	Foreign bool
	// Unplaced is true when one of its processes lives whose mount namespace could not be
	// read. Others may have one.
	Unplaced bool
	// Sandbox is the program that runs the container on a kernel of its own.
	Sandbox string
	// Pause is true for the container that only keeps the namespaces of a pod.
	Pause bool
}

// ContainerMount is a mount in the mount namespace of a running container.
type ContainerMount struct {
	Container
	// Mount is topmost at its path, which is as seen from the root of the
	// namespace. Below is what it hides there, the upper first.
	Mount Mount
	Below []Mount
}

// Path leads to it from outside the container.
func (c ContainerMount) Path() string {
	return path.Join("/proc", strconv.Itoa(c.PID), "root", c.Mount.Path)
}

// Unverified is a container whose mounts cannot be read from here, or none where no one
// container is meant.
type Unverified struct {
	Workload
	// Started is when it did, in time since the boot.
	Started time.Duration
	Why     Why
	// Detail is the name of the sandbox, or the text of the error.
	Detail string
	// Has is true where it is seen to have mounts of the volume.
	Has bool
}

// Why says why the mounts of a container are not known.
type Why uint8

// The reasons for an Unverified.
const (
	// WhyProbeFailed: its mount could not be probed, for the error in Detail.
	WhyProbeFailed Why = iota
	// WhyNoAnswer: its mount does not answer a probe.
	WhyNoAnswer
	// WhyUnreadable: its mount table could not be read, for the error in Detail.
	WhyUnreadable
	// WhyScanCut: not all processes of the node could be read in time.
	WhyScanCut
	// WhySandbox: it runs on a kernel of its own.
	WhySandbox
	// WhyForeign: its mount namespace belongs to another user namespace.
	WhyForeign
	// WhyTooMany: it has more mounts of the volume than are inspected.
	WhyTooMany
	// WhyUnplaced: a process of it lives whose mount namespace could not be told.
	WhyUnplaced
)

// ContainerSwap says what comes instead of a mount in a container.
type ContainerSwap struct {
	Container ContainerMount
	// Source is the healthy mount on the host, Sub the directory or file below its
	// root that the container has.
	Source Mount
	Sub    string
	// Attr are the final attributes.
	Attr Attr
	// Sharing is how it is to share mount events in the end.
	Sharing Sharing
	// Ended is true for a filesystem that has ended although it answers, Stale for one
	// of NFS, which has to answer ESTALE.
	Ended, Stale bool
	// Ours is a mount that an interrupted replacement left: beneath the dead one,
	// or alone if it is what is topmost. Zero for none.
	Ours Ref
	// Covers is the dead mount on top of which ours is to be; zero where ours comes in
	// its place.
	Covers Mount
}

// ContainerProbe says what was seen, or done, at one mount.
type ContainerProbe struct {
	// Errno is the result of a probe of the mount, through the container's own path,
	// in the end.
	Errno syscall.Errno
	// Err says why a probe, or the replacement, was not done; Refused is true if
	// it must not be, TimedOut if there was no answer in time, Ended if the process
	// is gone.
	Err                      string
	Refused, TimedOut, Ended bool
	// Swapped is how long it took to move ours beneath and to detach the dead mount.
	Swapped time.Duration
}
