package host

import (
	"context"
	"slices"
	"strings"
)

// thawOf is where a worker is remembered that waits for a thaw: reads go on beside
// it.
func thawOf(m Mount) storage { return storage{dev: m.Dev, root: "thaw"} }

// waitsForThaw is true when a worker got no answer because it waits for the right
// to write. One that cannot be ended is remembered, and for as long as it is there
// nobody else is sent to wait. That the filesystem is frozen says only the mount point in
// the kernel where it waits: another one may hold the root's lock, say.
func (n *Node) waitsForThaw(ctx context.Context, m Mount, err error) bool {
	w := waits(err)
	if !silent(ctx, err) || !slices.ContainsFunc(w, func(f string) bool { return strings.Contains(f, "removexattr") || frozen(f) }) {
		return false
	}
	found := Inspection{Answer: Answer{Frozen: slices.ContainsFunc(w, frozen), Waits: w}}
	n.probes.leave(thawOf(m), found, err)
	return true
}

// frozen is true for a function in which the kernel lets wait who wants to write to
// a frozen superblock (sb_start_write).
func frozen(f string) bool {
	return strings.Contains(f, "percpu_rwsem_wait") || strings.Contains(f, "percpu_down_read") || strings.Contains(f, "sb_start_write")
}

// freeze adds to an answer what a worker that still waits for the thaw stands
// for.
func (n *Node) freeze(m Mount, a *Answer) {
	if at := n.probes.left(thawOf(m)); at != nil && at.found.Answer.Frozen {
		a.Frozen, a.Waits = true, at.found.Answer.Waits
	}
}
