package node

import (
	"context"
	"errors"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// UnmountDead takes all mounts off a staging path, which are FUSE mounts whose daemon is
// gone, the topmost first, if MountDead could put one like that in their place.
func (n *Node) UnmountDead(ctx context.Context, path string, stack []facts.Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	_, err := step(ctx, n, ops.UnmountDead, ops.UnmountDeadQuery{Target: path, Stack: stack})
	return err
}

// MountDead mounts a FUSE filesystem without a daemon at a staging path where nothing is
// mounted, with the type and source of the mount that was there, if place is true. placed
// is false where something is mounted, changed is then true if that is another mount than
// before; neither is where the directory is gone.
func (n *Node) MountDead(ctx context.Context, path string, before facts.Mount, place bool) (placed, changed bool, err error) {
	a, err := step(ctx, n, ops.MountDead, ops.MountDeadQuery{Target: path, Before: before, Place: place})
	if err != nil {
		return false, false, err
	}
	return a.Placed, a.Changed, nil
}

// Mounting names the processes that may be about to mount something at a path, which has several
// names: those of the pod of a driver's process and root's, of those that started at a time since
// the boot or later.
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
