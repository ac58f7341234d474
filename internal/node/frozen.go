package node

import (
	"context"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// thawOf is the storage that a worker keeps that waits for a thaw: reads go on
// meanwhile.
func thawOf(m facts.Mount) storage { return storage{dev: m.Dev, root: "thaw"} }

// waitsForThaw reports whether a worker got no answer because it waits for the right to
// write. One that cannot be ended is marked, and no other worker asks until it ends.
// Only the function of the kernel in which it waits tells that the filesystem is
// frozen: another process may hold the root directory's lock, for example.
func (n *Node) waitsForThaw(ctx context.Context, m facts.Mount, err error) bool {
	w := waits(err)
	if !timedOut(ctx, err) || !slices.ContainsFunc(w, func(f string) bool { return strings.Contains(f, "removexattr") || frozen(f) }) {
		return false
	}
	found := Inspection{Answer: facts.Answer{Frozen: slices.ContainsFunc(w, frozen), Waits: w}}
	n.probes.markStuck(thawOf(m), found, err)
	return true
}

// frozen reports whether the kernel makes writers to a frozen superblock wait in a
// function (sb_start_write).
func frozen(f string) bool {
	return strings.Contains(f, "percpu_rwsem_wait") || strings.Contains(f, "percpu_down_read") || strings.Contains(f, "sb_start_write")
}

// addFrozen adds to an answer that a worker still waits for the thaw.
func (n *Node) addFrozen(m facts.Mount, a *facts.Answer) {
	if call := n.probes.outstanding(thawOf(m)); call != nil && call.found.Answer.Frozen {
		a.Frozen, a.Waits = true, call.found.Answer.Waits
	}
}
