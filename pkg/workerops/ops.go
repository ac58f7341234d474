package workerops

import "github.com/csi-addons/node-healer/pkg/worker"

// The operations.
var (
	// Look sees what stands at paths and touches one superblock.
	Look = worker.Define("look", worker.Pooled, look)
	// Published lists the volumes that kubelet has for pods.
	Published = worker.Define("published", worker.Pooled, published)
	// Media reads blocks of a device that no look reads.
	Media = worker.Define("media", worker.Pooled, media)
	// Write shows whether a filesystem takes a write.
	Write = worker.Define("write", worker.Pooled, write)
	// Place puts a read-only clone of a staged mount on an empty place.
	Place = worker.Define("place", worker.Spent, place)
	// Replace puts a read-only clone of a staged mount in the place of a dead one.
	Replace = worker.Define("replace", worker.Spent, replace)
	// Cover puts one on top of a dead one, where it cannot come beneath.
	Cover = worker.Define("cover", worker.Spent, cover)
	// Uncover takes a dead mount off the top of a stack.
	Uncover = worker.Define("uncover", worker.Spent, uncover)
	// Settle gives a placed clone that stands alone its final attributes.
	Settle = worker.Define("settle", worker.Spent, settle)
	// TakeOff unmounts one interim mount from the top of a stack.
	TakeOff = worker.Define("take-off", worker.Spent, takeOff)
	// Containers finds the containers that run, Mounts what they have mounted.
	Containers = worker.Define("containers", worker.Spent, containers)
	Mounts     = worker.Define("mounts", worker.Pooled, containerMounts)
	// Peek touches a mount in a container.
	Peek = worker.Define("peek", worker.Spent, peek)
	// Inside replaces mounts in containers.
	Inside = worker.Define("inside", worker.Spent, inside)
	// Holders finds who holds superblocks and block devices.
	Holders = worker.Define("holders", worker.Spent, holders)
	// Exclusive shows whether anybody has claimed a block device.
	Exclusive = worker.Define("exclusive", worker.Spent, exclusive)
)

// Ops lists the operations for worker.Serve.
func Ops() []worker.Servable {
	return []worker.Servable{Look, Media, Published, Write, Place, Replace, Cover, Uncover, Settle, TakeOff, Containers, Mounts, Peek, Inside, Holders, Exclusive}
}
