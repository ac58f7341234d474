package node

import (
	"context"
	"errors"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// UnmountDead unmounts all mounts at a staging path, the topmost first: FUSE mounts whose daemon is gone.
// It is refused where MountDead could not mount one in their place, as the path would stay bare.
func (n *Node) UnmountDead(ctx context.Context, path string, stack []facts.Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	_, err := step(ctx, n, ops.UnmountDead, ops.UnmountDeadQuery{Target: path, Stack: stack})
	return err
}

// MountDead mounts a FUSE filesystem without a daemon at a bare staging path, if place is true, with the
// type and source of before, the mount that was there: whoever comes meets ENOTCONN, and not an empty
// directory of the node. placed is true if it did. changed is true if another mount than before is at
// the path. Both are false where the directory is gone.
func (n *Node) MountDead(ctx context.Context, path string, before facts.Mount, place bool) (placed, changed bool, err error) {
	a, err := step(ctx, n, ops.MountDead, ops.MountDeadQuery{Target: path, Before: before, Place: place})
	if err != nil {
		return false, false, err
	}
	return a.Placed, a.Changed, nil
}

// Mounting names the processes that may be about to mount something at a path, by any of its names: those
// that have it in their arguments and started at since (in time since the boot) or later, of the pod of
// the driver's process, and root's outside of pods.
func (n *Node) Mounting(ctx context.Context, paths []string, since time.Duration, driver int) (found []facts.FUSEDaemon, err error) {
	err = n.probes.serialize(ctx, mountingWalk, func() error {
		q := ops.MountingQuery{Paths: paths, Since: since, Driver: driver, Budget: n.cfg.ProbeTimeout / 2}
		found, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Mounting, q)
		if errors.Is(err, worker.ErrLeft) { // the walk skipped a process that blocked it
			err = nil
		}
		return err
	})
	return found, err
}
