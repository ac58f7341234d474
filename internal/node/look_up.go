package node

import (
	"context"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// LookUp asks the daemon of a FUSE mount for a name that cannot exist: one question at a time
// for each connection, and none while the daemon owes an answer to others, or that is not
// known, as the kernel may hold the lock of the root directory until it comes.
func (n *Node) LookUp(ctx context.Context, m facts.Mount) (l facts.Lookup, err error) {
	err = n.probes.serialize(ctx, storage{dev: m.Dev, root: lookups}, func() error {
		if !n.fuseIdle(ctx, m.Dev) {
			return nil
		}
		q := ops.ProbeQuery{Path: m.Path, Superblock: m.Dev, Around: n.fewBeside(m)}
		l, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.LookUp, q)
		return err
	})
	if timedOut(ctx, err) { // also where an earlier question has no answer yet
		return facts.Lookup{Asked: true, TimedOut: true, Within: n.cfg.ProbeTimeout}, nil
	}
	return l, err
}

// fuseIdle reports whether a daemon owes no answer, at one of a few looks: one that is used
// all the time owes one at most of them.
func (n *Node) fuseIdle(ctx context.Context, dev facts.Dev) bool {
	const looks, pause = 5, 10 * time.Millisecond
	for range looks {
		if n.FUSEWaiting(ctx, dev) == 0 {
			return true
		}
		time.Sleep(pause)
	}
	return false
}
