package host

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/workerops"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// CanReplace is true where the kernel can put a mount beneath another one
// (Linux 6.5).
func (n *Node) CanReplace() bool { return workerops.CanMoveBeneath() }

// CanCover is true where the kernel can put a mount on top of another one at least
// (Linux 5.2).
func (n *Node) CanCover() bool { return workerops.CanMove() }

// Replace puts a clone of the staged mount in the place of a dead one, which
// stands alone there. The clone comes beneath it first, and is read-only until it
// stands alone and still agrees.
func (n *Node) Replace(ctx context.Context, plan RebindPlan, dead Mount, still func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Replace, workerops.ReplaceQuery{
		PlaceQuery: plan.query(),
		Dead:       ref(dead),
		Superblock: workerops.Number(dead.Dev),
		Ended:      plan.Ended,
		Stale:      plan.Stale,
	})
	if err != nil {
		return err
	}
	if a.Left {
		klog.FromContext(ctx).Info("A mount namespace has something of its own on the place, and is left as it is", "place", plan.Target)
	}
	if err := still(ctx); err != nil {
		// The dead mount is off, and a bare directory would be worse than what
		// stands there: nothing can be written or deleted through it.
		return fmt.Errorf("%w; a read-only mount stays at the place", err)
	}
	return n.settle(ctx, plan, a.Mount)
}

// Cover puts a clone of the staged mount on top of a dead one, plan.Covers, where
// the kernel cannot put it beneath. It is read-only until it still agrees.
func (n *Node) Cover(ctx context.Context, plan RebindPlan, still func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Cover, workerops.CoverQuery{
		PlaceQuery: plan.query(), Dead: ref(plan.Covers), Superblock: workerops.Number(plan.Covers.Dev),
	})
	if err != nil {
		return err
	}
	if err := still(ctx); err != nil {
		// The dead mount would answer as before, so nothing is lost with ours.
		if offErr := n.takeOff(ctx, plan.Target, a.Mount); offErr != nil {
			return fmt.Errorf("%w; the clone stays at the place, read-only: %w", err, offErr)
		}
		return err
	}
	return n.settle(ctx, plan, a.Mount)
}

// Uncover takes a dead mount off the top of a stack. What it hides stays as it is.
func (n *Node) Uncover(ctx context.Context, dead, below Mount, still func(context.Context) error) error {
	if err := still(ctx); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Uncover, workerops.UncoverQuery{
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
