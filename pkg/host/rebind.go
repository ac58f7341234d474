package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/workerops"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// RebindPlan says which staged mount goes where, and how it ends up there.
type RebindPlan struct {
	Staged Mount
	// Sub is the directory below the staged root that the place shows; empty
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

// Rebind puts a clone of the staged mount on an empty place. The clone is
// read-only until it stands alone and still agrees.
func (n *Node) Rebind(ctx context.Context, plan RebindPlan, still func(context.Context) error) error {
	placed, err := n.place(ctx, plan)
	if err != nil {
		return err
	}
	if err := still(ctx); err != nil {
		// Nobody wants it any more: leave the place as it was found.
		if offErr := n.takeOff(ctx, plan.Target, placed); offErr != nil {
			return fmt.Errorf("%w; the clone stays at the place, read-only: %w", err, offErr)
		}
		return err
	}
	return n.settle(ctx, plan, placed)
}

// Finish settles an interim mount that an earlier rebind left alone at a place.
func (n *Node) Finish(ctx context.Context, plan RebindPlan, interim Mount, still func(context.Context) error) error {
	if err := still(ctx); err != nil {
		return err
	}
	return n.settle(ctx, plan, ref(interim))
}

// TakeOff unmounts an interim mount from the top of a stack. Where the mount
// below shares its events, copies on its peers vanish with it; it is refused
// when anything else stands there.
func (n *Node) TakeOff(ctx context.Context, interim Mount, still func(context.Context) error) error {
	if err := still(ctx); err != nil {
		return err
	}
	return n.takeOff(ctx, interim.Path, ref(interim))
}

func (n *Node) place(ctx context.Context, plan RebindPlan) (workerops.MountRef, error) {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Place, plan.query())
	return a.Mount, err
}

func (p RebindPlan) query() workerops.PlaceQuery {
	return workerops.PlaceQuery{
		Source:      p.Staged.Path,
		SourceMount: ref(p.Staged),
		Sub:         p.Sub,
		Target:      p.Target,
		Interim:     uint64(interimAttr),
	}
}

func (n *Node) settle(ctx context.Context, plan RebindPlan, placed workerops.MountRef) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.Settle, workerops.SettleQuery{
		Target:  plan.Target,
		Mount:   placed,
		Attr:    uint64(plan.Attr),
		Mark:    uint64(settledMark),
		Interim: uint64(interimAttr),
		Private: plan.Private,
		Shared:  plan.Shared,
		Covers:  ref(plan.Covers),
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

func (n *Node) takeOff(ctx context.Context, target string, m workerops.MountRef) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	_, err := worker.Call(call, n.cfg.Pool, workerops.TakeOff, workerops.TakeOffQuery{
		Target:  target,
		Mount:   m,
		Interim: uint64(interimAttr),
	})
	return err
}
