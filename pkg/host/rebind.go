package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// RebindPlan says which staged mount goes where, and how it ends up there.
type RebindPlan struct {
	Staged Mount
	// Sub is the directory below the staged root that the mount point shows; empty
	// for the root itself.
	Sub    string
	Target string
	// Attr are the final attributes.
	Attr Attr
	// Private takes the mount out of the peer group of its parent, as the
	// record shows it.
	Private bool
	// Shared has it share its events again, as the record shows it.
	Shared bool
	// Ended is true for a dead filesystem that answers all the same, Stale for one of
	// NFS that must answer ESTALE.
	Ended, Stale bool
	// Covers is the dead mount at Target on top of which it goes; zero for none.
	Covers Mount
}

// Rebind puts a clone of the staged mount on an empty mount point. The clone is
// read-only until it stands alone and still agrees.
func (n *Node) Rebind(ctx context.Context, plan RebindPlan, revalidate func(context.Context) error) error {
	placed, err := n.mountPoint(ctx, plan)
	if err != nil {
		return err
	}
	if err := revalidate(ctx); err != nil {
		// Nobody wants it any more: leave the mount point as it was found.
		if offErr := n.unmountDuplicate(ctx, plan.Target, placed); offErr != nil {
			return fmt.Errorf("%w; the clone stays at the mount point, read-only: %w", err, offErr)
		}
		return err
	}
	return n.finalize(ctx, plan, placed)
}

// Finish finalizes an placeholder that an earlier rebind left alone at a mount point.
func (n *Node) Finish(ctx context.Context, plan RebindPlan, placeholder Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	return n.finalize(ctx, plan, ref(placeholder))
}

// UnmountDuplicate unmounts an placeholder from the top of a stack. Where the mount
// below shares its events, copies on its peers vanish with it; it is refused
// when anything else stands there.
func (n *Node) UnmountDuplicate(ctx context.Context, placeholder Mount, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	return n.unmountDuplicate(ctx, placeholder.Path, ref(placeholder))
}

func (n *Node) mountPoint(ctx context.Context, plan RebindPlan) (workerops.MountRef, error) {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Attach, plan.query())
	return a.Mount, err
}

func (p RebindPlan) query() workerops.AttachQuery {
	return workerops.AttachQuery{
		Source:      p.Staged.Path,
		SourceMount: ref(p.Staged),
		Sub:         p.Sub,
		Target:      p.Target,
		Placeholder: uint64(placeholderAttr),
	}
}

func (n *Node) finalize(ctx context.Context, plan RebindPlan, placed workerops.MountRef) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Finalize, workerops.FinalizeQuery{
		Target:      plan.Target,
		Mount:       placed,
		Attr:        uint64(plan.Attr),
		Mark:        uint64(finalizedMark),
		Placeholder: uint64(placeholderAttr),
		Private:     plan.Private,
		Shared:      plan.Shared,
		Covers:      ref(plan.Covers),
		// Enough for a node that heals hundreds of volumes at once.
		Budget: n.cfg.StepTimeout / 4,
	})
	switch {
	case err != nil:
		return err
	case a.Left < 0:
		return errors.New("the copies of the mount in other mount namespaces could not be made writable in time")
	case a.Left > 0:
		return fmt.Errorf("%d copies of the mount in other mount namespaces could not be made writable", a.Left)
	}
	return nil
}

func (n *Node) unmountDuplicate(ctx context.Context, target string, m workerops.MountRef) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	_, err := worker.Call(call, n.cfg.Pool, workerops.UnmountDuplicate, workerops.UnmountDuplicateQuery{
		Target:      target,
		Mount:       m,
		Placeholder: uint64(placeholderAttr),
	})
	return err
}
