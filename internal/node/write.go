package node

import (
	"context"
	"fmt"

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
		w.Writing, w.Waits = true, waits(err)
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
