package node

import (
	"context"

	"github.com/csi-addons/node-healer/internal/ops"
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
