package healer

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Where the kernel cannot put a mount beneath another one (move_mount BENEATH, Linux
// 6.5), a clone goes on top of a dead one: of a FUSE mount whose connection is gone, and
// of no other, because nothing that it answers later could be wrong.

// MaxCovered bounds the dead mounts at a mount point: a driver unmounts one at a time.
const MaxCovered = 4

// ReplaceNotSupported refuses a step where the kernel lacks the call for it.
const ReplaceNotSupported = "ReplaceNotSupported: this kernel cannot put a mount beneath another one (Linux 6.5 can), and to mount over a dead one would reach other mount namespaces too; delete the pod, so that kubelet publishes the volume anew"

// AllReplaced reports whether mounts are dead FUSE mounts of this volume, which an
// earlier step made private to cover them.
func (c Case) AllReplaced(mounts []facts.Mount) bool {
	return !slices.ContainsFunc(mounts, func(m facts.Mount) bool {
		return !facts.IsFUSE(m.FSType) || m.Propagation != (facts.Propagation{}) || !c.Replaced(m.Dev)
	})
}
