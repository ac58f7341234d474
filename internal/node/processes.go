package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

// processes returns what a walk over all processes found that began after the call: the
// containers by a containerWalk, the FUSE daemons by a daemonWalk. The latter reads all open
// files, of which a tenant may have a million, so the former does not wait for it.
//
// One walk of each kind is made at a time: when a daemon that served many volumes dies, all
// of them are asked about at once, and a walk costs some 35 us of CPU per process. The
// server reads no file of a process; a worker does.
func (n *Node) processes(ctx context.Context, kind storage) (a ops.ProcessesAnswer, err error) {
	select {
	case walk := <-n.nextWalk(ctx, kind, n.walk):
		a, _ = walk.Val.(ops.ProcessesAnswer)
		return a, walk.Err
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

const (
	// walkShare is for how many milliseconds of a second walks of one kind go on, while they
	// are asked for all the time: beside 100 volumes that hang they took three quarters of a
	// core from the volumes that do not.
	walkShare = 200
	// walkBurst is for how many milliseconds walks follow each other at once, as those of one
	// heal do.
	walkBurst = 250
	// walkCharge is the most that one walk counts. The next one never waits for more than a
	// quarter of a second, on however large a node.
	walkCharge = 50 * time.Millisecond
)

// nextWalk makes one walk when the one under way has ended, for all who call until it
// begins: a walk that began before a call may lack what its caller has to see.
func (n *Node) nextWalk(ctx context.Context, kind storage, walk func(context.Context, storage) (ops.ProcessesAnswer, error)) <-chan singleflight.Result {
	ctx = context.WithoutCancel(ctx) // that the first caller leaves is no answer for the others
	return n.walks.DoChan(kind.root, func() (_ any, err error) {
		defer func() {
			if p := recover(); p != nil { // in a goroutine of its own it would end the server
				err = fmt.Errorf("internal error: a panic with a value of type %T", p)
			}
		}()
		var a ops.ProcessesAnswer
		err = n.probes.serialize(ctx, kind, func() (err error) {
			share := n.walkShares[kind]
			if err := share.Wait(ctx); err != nil {
				return err
			}
			n.walks.Forget(kind.root)
			began := time.Now()
			a, err = walk(ctx, kind)
			share.ReserveN(time.Now(), int(min(time.Since(began), walkCharge).Milliseconds()))
			return err
		})
		if errors.Is(err, worker.ErrLeft) { // it skipped a process that blocked it, and says so
			err = nil
		}
		return a, err
	})
}

// walk asks a worker. What it asks is bounded without a deadline of ctx.
func (n *Node) walk(ctx context.Context, kind storage) (a ops.ProcessesAnswer, err error) {
	q := ops.ProcessesQuery{Budget: n.cfg.ProbeTimeout / 2}
	if kind == daemonWalk {
		q.Daemons, q.Known = true, n.knownDaemons
	}
	for tries := 0; tries == 0 || kind == containerWalk && err == nil && a.Cut && tries < 2; tries++ { // a busy node may have cut one short
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Processes, q)
	}
	if kind == daemonWalk && (err == nil || errors.Is(err, worker.ErrLeft)) {
		n.knownDaemons = a.Known
	}
	return a, err
}
