package ops

import "github.com/csi-addons/node-healer/internal/operation"

// The operations. The query or the function of each says what it does.
var (
	Inspect             = operation.Define("inspect", operation.Pooled, inspect)
	LookUp              = operation.Define("look-up", operation.Pooled, lookUp)
	Published           = operation.Define("published", operation.Pooled, published)
	Write               = operation.Define("write", operation.Pooled, write)
	Place               = operation.Define("place", operation.Spent, place)
	Finalize            = operation.Define("finalize", operation.Spent, finalize)
	UnmountTop          = operation.Define("unmount-top", operation.Spent, unmountTop)
	Processes           = operation.Define("processes", operation.Spent, processesNicely)
	Mounts              = operation.Define("mounts", operation.Pooled, containerMounts)
	ProbeInContainer    = operation.Define("probe-in-container", operation.Spent, probeInContainer)
	ReplaceInContainers = operation.Define("replace-in-containers", operation.Spent, replaceInContainers)
	ReadFile            = operation.Define("read-file", operation.Pooled, readFile)
	RunProgram          = operation.Define("run-program", operation.Spent, runProgram)
	Reach               = operation.Define("reach", operation.Spent, reach)
	AbortFUSE           = operation.Define("abort-fuse", operation.Spent, abortFUSE)
	UnmountDead         = operation.Define("unmount-dead", operation.Spent, unmountDead)
	MountDead           = operation.Define("mount-dead", operation.Spent, mountDead)
	Mounting            = operation.Define("mounting", operation.Spent, mounting)
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
