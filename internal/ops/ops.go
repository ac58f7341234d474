package ops

import "github.com/csi-addons/node-healer/internal/operation"

// The operations.
var (
	// Inspect tells what is at paths and probes one superblock, for each query.
	Inspect = operation.Define("inspect", operation.Pooled, inspect)
	// LookUp asks for a name that cannot exist.
	LookUp = operation.Define("look-up", operation.Pooled, lookUp)
	// Published lists the volumes that kubelet has for pods.
	Published = operation.Define("published", operation.Pooled, published)
	// Write shows whether a filesystem takes a write.
	Write = operation.Define("write", operation.Pooled, write)
	// Place puts a read-only clone of a staged mount at a mount point.
	Place = operation.Define("place", operation.Spent, place)
	// Finalize gives a placed clone that is alone its final attributes.
	Finalize = operation.Define("finalize", operation.Spent, finalize)
	// UnmountTop unmounts a dead mount or a placeholder from the top of a stack.
	UnmountTop = operation.Define("unmount-top", operation.Spent, unmountTop)
	// Processes finds the containers and the FUSE daemons among all processes.
	Processes = operation.Define("processes", operation.Spent, processesNicely)
	// Mounts tells what containers have mounted.
	Mounts = operation.Define("mounts", operation.Pooled, containerMounts)
	// ProbeInContainer probes a mount in a container.
	ProbeInContainer = operation.Define("probe-in-container", operation.Spent, probeInContainer)
	// ReplaceInContainers replaces mounts in containers.
	ReplaceInContainers = operation.Define("replace-in-containers", operation.Spent, replaceInContainers)
	// ReadFile reads a small file beneath a directory.
	ReadFile = operation.Define("read-file", operation.Pooled, readFile)
	// RunProgram runs a program until it has ended.
	RunProgram = operation.Define("run-program", operation.Spent, runProgram)
	// Reach connects to a TCP address from the host's network.
	Reach = operation.Define("reach", operation.Spent, reach)
	// AbortFUSE ends a FUSE connection.
	AbortFUSE = operation.Define("abort-fuse", operation.Spent, abortFUSE)
	// UnmountDead takes dead mounts off a staging path, and MountDead puts one there.
	UnmountDead = operation.Define("unmount-dead", operation.Spent, unmountDead)
	MountDead   = operation.Define("mount-dead", operation.Spent, mountDead)
	// Mounting names the processes that may be about to mount something at a path.
	Mounting = operation.Define("mounting", operation.Spent, mounting)
)

// Ops lists the operations for operation.Serve.
func Ops() []operation.Servable {
	return []operation.Servable{
		Inspect, LookUp, Published, Write, Place, Finalize, UnmountTop,
		Processes, Mounts, ProbeInContainer, ReplaceInContainers,
		ReadFile, RunProgram, Reach,
		AbortFUSE, UnmountDead, MountDead, Mounting,
	}
}
