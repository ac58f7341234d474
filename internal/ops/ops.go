package ops

import "github.com/csi-addons/node-healer/internal/worker"

// The operations.
var (
	// Inspect tells what is at paths and probes one superblock.
	Inspect = worker.Define("inspect", worker.Pooled, inspect)
	// InspectSilent does that on a storage that gave no answer the last time.
	InspectSilent = worker.Define("inspect-silent", worker.Doubtful, inspect)
	// InspectAll does that several times.
	InspectAll = worker.Define("inspect-all", worker.Pooled, inspectAll)
	// LookUp asks for a name that cannot exist.
	LookUp = worker.Define("look-up", worker.Pooled, lookUp)
	// Published lists the volumes that kubelet has for pods.
	Published = worker.Define("published", worker.Pooled, published)
	// Write shows whether a filesystem takes a write.
	Write = worker.Define("write", worker.Pooled, write)
	// Place puts a read-only clone of a staged mount at a mount point.
	Place = worker.Define("place", worker.Spent, place)
	// Finalize gives a placed clone that is alone its final attributes.
	Finalize = worker.Define("finalize", worker.Spent, finalize)
	// UnmountTop unmounts a dead mount or a placeholder from the top of a stack.
	UnmountTop = worker.Define("unmount-top", worker.Spent, unmountTop)
	// Processes finds the containers and the FUSE daemons among all processes.
	Processes = worker.Define("processes", worker.Spent, processes)
	// Mounts tells what containers have mounted.
	Mounts = worker.Define("mounts", worker.Pooled, containerMounts)
	// ProbeInContainer probes a mount in a container.
	ProbeInContainer = worker.Define("probe-in-container", worker.Spent, probeInContainer)
	// ReplaceInContainers replaces mounts in containers.
	ReplaceInContainers = worker.Define("replace-in-containers", worker.Spent, replaceInContainers)
	// ReadFile reads a small file beneath a directory.
	ReadFile = worker.Define("read-file", worker.Pooled, readFile)
	// RunProgram runs a program until it has ended.
	RunProgram = worker.Define("run-program", worker.Spent, runProgram)
	// Reach connects to a TCP address from the host's network.
	Reach = worker.Define("reach", worker.Spent, reach)
	// AbortFUSE ends a FUSE connection.
	AbortFUSE = worker.Define("abort-fuse", worker.Spent, abortFUSE)
	// UnmountDead takes dead mounts off a staging path, and MountDead puts one there.
	UnmountDead = worker.Define("unmount-dead", worker.Spent, unmountDead)
	MountDead   = worker.Define("mount-dead", worker.Spent, mountDead)
	// Mounting names the processes that may be about to mount something at a path.
	Mounting = worker.Define("mounting", worker.Spent, mounting)
)

// Ops lists the operations for worker.Serve.
func Ops() []worker.Servable {
	return []worker.Servable{
		Inspect, InspectSilent, InspectAll, LookUp, Published, Write, Place, Finalize, UnmountTop,
		Processes, Mounts, ProbeInContainer, ReplaceInContainers,
		ReadFile, RunProgram, Reach,
		AbortFUSE, UnmountDead, MountDead, Mounting,
	}
}
