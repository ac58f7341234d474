package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// TryWrite has a worker write to the superblock that is mounted at m, leaving no name
// behind, or with onlySync call fsync(2) on its root directory, which fails where an ext4
// has shut itself down. That a write gets no answer is an answer, and no other call
// reaches the storage until its worker ends. It is Unable while another probe is under
// way and on a frozen filesystem.
func (n *Node) TryWrite(ctx context.Context, m facts.Mount, onlySync bool) (facts.Write, error) {
	q := ops.WriteQuery{Path: m.Path, Want: m.Ref(), Sync: onlySync}
	w := facts.Write{Unable: true}
	if n.addFrozen(m, &w.Answer); w.Frozen {
		return w, nil
	}
	s := storageOf(m)
	call, first := n.probes.join(s, facts.Mount{})
	if !first {
		return facts.Write{Unable: true}, nil
	}
	var found Inspection
	var keeps error // of a worker that keeps the storage until it ends
	defer func() { n.probes.finish(s, call, found, keeps) }()
	var err error
	for range 2 { // an errno counts when a second write gives one too
		w, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Write, q)
		if err != nil || w.Errno == 0 || w.Unable {
			break
		}
	}
	if n.waitsForThaw(ctx, m, err) {
		w = facts.Write{Unable: true}
		n.addFrozen(m, &w.Answer)
		return w, nil
	}
	if timedOut(ctx, err) {
		w = facts.Write{Answer: n.noAnswer(err)}
		w.Writing = true
	}
	found.Answer, keeps = w.Answer, err
	switch {
	case w.TimedOut && ctx.Err() == nil:
		return w, nil
	case err != nil:
		return facts.Write{}, err
	case !n.IsTop(m):
		return facts.Write{Unable: true}, nil // it may have been another filesystem
	}
	return w, nil
}

// TellsShutdown reports whether the kernel shows in the mount table that an ext4 has
// shut itself down. Only its version tells: a healthy filesystem has no such option.
func TellsShutdown() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 15
}

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
