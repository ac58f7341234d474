package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// CanReplace reports whether the kernel can put a mount beneath another one (Linux
// 6.5).
func (n *Node) CanReplace() bool { return ops.CanMoveBeneath() }

// CanCover reports whether the kernel can put a mount on top of another one at least
// (Linux 5.2).
func (n *Node) CanCover() bool { return mount.CanMove() }

// Place puts a clone of the staged mount at its position, unless an earlier step placed one, and
// finalizes it. The clone is read-only until it is alone at the mount point and revalidate says that the
// mount point is still wanted: a driver that unpublishes meanwhile can delete nothing through it.
func (n *Node) Place(ctx context.Context, plan facts.PlacePlan, revalidate func(context.Context) error) (err error) {
	var a ops.PlaceAnswer
	earlier := plan.Placed != (facts.Ref{})
	if !earlier {
		if a, err = step(ctx, n, ops.Place, plan); err != nil {
			return err
		}
		plan.Placed = a.Mount
	}
	if a.Left {
		klog.FromContext(ctx).Info("A mount namespace has something of its own on the mount point, and is left as it is", "mountPoint", plan.Target)
	}
	err = revalidate(ctx)
	switch {
	case err == nil:
		return n.finalize(ctx, plan)
	case earlier:
		return err
	case plan.Position == facts.BeneathDead:
		// The dead mount is detached. To unmount the placeholder would leave the bare directory,
		// into which a pod writes; through the placeholder nothing is written or deleted.
		return fmt.Errorf("%w; a read-only mount stays at the mount point", err)
	}
	// The mount point is no longer wanted: it is left as it was found.
	placed := facts.Mount{Path: plan.Target, ID: a.Mount.ID, OldID: a.Mount.OldID}
	if _, undoErr := step(ctx, n, ops.UnmountTop, facts.UnmountPlan{Top: placed, Placeholder: true, Below: a.On}); undoErr != nil {
		return fmt.Errorf("%w; the clone stays at the mount point, read-only: %w", err, undoErr)
	}
	return err
}

func (n *Node) finalize(ctx context.Context, plan facts.PlacePlan) error {
	// The budget is enough for a node that heals hundreds of volumes at once.
	left, err := step(ctx, n, ops.Finalize, ops.FinalizeQuery{PlacePlan: plan, Budget: n.cfg.StepTimeout / 4})
	switch {
	case err != nil:
		return err
	case left < 0:
		return errors.New("the copies of the mount in other mount namespaces could not all be found and made writable")
	case left > 0:
		return fmt.Errorf("%d copies of the mount in other mount namespaces could not be made writable", left)
	}
	return nil
}

// UnmountTop unmounts a placeholder, or a dead mount, from the top of a stack. The mount below stays as
// it is.
func (n *Node) UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	_, err := step(ctx, n, ops.UnmountTop, plan)
	return err
}

// step has a worker do one operation of a step, within StepTimeout.
func step[Q, A any](ctx context.Context, n *Node, op operation.Op[Q, A], q Q) (A, error) {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	defer n.changed()
	return worker.Call(call, n.cfg.Pool, op, q)
}

// UnmountDead unmounts all mounts at a staging path, the topmost first: FUSE mounts whose daemon is gone.
// It is refused where MountDead could not mount one in their place, as the path would stay bare.
func (n *Node) UnmountDead(ctx context.Context, path string, stack []facts.Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	_, err := step(ctx, n, ops.UnmountDead, ops.UnmountDeadQuery{Target: path, Stack: stack})
	return err
}

// MountDead has a worker do that (ops.MountDeadQuery). Both answers are false where the directory is gone.
func (n *Node) MountDead(ctx context.Context, path string, before facts.Mount, place bool) (placed, changed bool, err error) {
	a, err := step(ctx, n, ops.MountDead, ops.MountDeadQuery{Target: path, Before: before, Place: place})
	if err != nil {
		return false, false, err
	}
	return a.Placed, a.Changed, nil
}

// Mounting names the processes that may be about to mount something at a path (ops.MountingQuery).
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

// ReplaceInContainers replaces mounts in containers, each as a whole or not at all. It returns an error
// for each plan; nil means that the container's path answers with the new mount.
func (n *Node) ReplaceInContainers(ctx context.Context, plans []facts.ContainerSwap) []error {
	errs := make([]error, len(plans))
	const perNamespace = 50 * time.Millisecond // most take a hundredth of it
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout+time.Duration(len(plans))*perNamespace)
	defer cancel()
	// One worker, with a thread for each namespace.
	results, err := worker.Call(call, n.cfg.Pool, ops.ReplaceInContainers, ops.ReplaceInContainersQuery{Swaps: plans, Budget: n.cfg.StepTimeout / 2})
	if err == nil && len(results) != len(plans) {
		err = errAnswers
	}
	// With ErrLeft a thread waits in one of the namespaces: its mounts may still be changed, and
	// have TimedOut. The answers for the other namespaces hold.
	left := errors.Is(err, worker.ErrLeft) && len(results) == len(plans)
	for i := range plans {
		switch {
		case err != nil && (!left || results[i].TimedOut):
			errs[i] = err
		case results[i].Refused:
			errs[i] = fmt.Errorf("%w: %s", operation.ErrRefused, strings.TrimPrefix(results[i].Err, operation.ErrRefused.Error()+": "))
		case results[i].Err != "":
			errs[i] = errors.New(results[i].Err)
		case results[i].Errno != 0:
			errs[i] = fmt.Errorf("replaced, and it does not answer: %w", results[i].Errno)
		}
	}
	return errs
}
