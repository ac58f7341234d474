package host

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// CanReplace is true where the kernel can put a mount beneath another one
// (Linux 6.5).
func (n *Node) CanReplace() bool { return workerops.CanMoveBeneath() }

// CanCover is true where the kernel can put a mount on top of another one at least
// (Linux 5.2).
func (n *Node) CanCover() bool { return workerops.CanMove() }

// Replace puts a clone of the staged mount instead of a dead one, which
// stands alone there. The clone comes beneath it first, and is read-only until it
// stands alone and still agrees.
func (n *Node) Replace(ctx context.Context, plan RebindPlan, dead Mount, revalidate func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Replace, workerops.ReplaceQuery{
		AttachQuery: plan.query(),
		Dead:            ref(dead),
		Superblock:      workerops.Number(dead.Dev),
		Ended:           plan.Ended,
		Stale:           plan.Stale,
	})
	if err != nil {
		return err
	}
	if a.Left {
		klog.FromContext(ctx).Info("A mount namespace has something of its own on the mount point, and is left as it is", "mount point", plan.Target)
	}
	if err := revalidate(ctx); err != nil {
		// The dead mount is off, and a bare directory would be worse than what
		// stands there: nothing can be written or deleted through it.
		return fmt.Errorf("%w; a read-only mount stays at the mount point", err)
	}
	return n.finalize(ctx, plan, a.Mount)
}

// Cover puts a clone of the staged mount on top of a dead one, plan.Covers, where
// the kernel cannot put it beneath. It is read-only until it still agrees.
func (n *Node) Cover(ctx context.Context, plan RebindPlan, revalidate func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Cover, workerops.CoverQuery{
		AttachQuery: plan.query(), Dead: ref(plan.Covers), Superblock: workerops.Number(plan.Covers.Dev),
	})
	if err != nil {
		return err
	}
	if err := revalidate(ctx); err != nil {
		// The dead mount would answer as before, so nothing is lost with ours.
		if offErr := n.unmountDuplicate(ctx, plan.Target, a.Mount); offErr != nil {
			return fmt.Errorf("%w; the clone stays at the mount point, read-only: %w", err, offErr)
		}
		return err
	}
	return n.finalize(ctx, plan, a.Mount)
}

// Uncover takes a dead mount off the top of a stack. What it hides stays as it is.
func (n *Node) UnmountDeadTop(ctx context.Context, dead, below Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.UnmountDeadTop, workerops.UnmountDeadTopQuery{
		Target:     dead.Path,
		Dead:       ref(dead),
		Superblock: workerops.Number(dead.Dev),
		Below:      ref(below),
		Stale:      IsNFS(dead.FSType),
	})
	if err == nil && !a.Done {
		err = errors.New("the worker did not do it")
	}
	return err
}
