package host

import (
	"context"
	"errors"

	"github.com/csi-addons/node-healer/pkg/touch"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// TakeBeneath takes a dead mount away from the bottom of a stack. What covers it,
// top the topmost, stays as it is.
func (n *Node) TakeBeneath(ctx context.Context, top, dead Mount, still func(context.Context) error) error {
	if err := still(ctx); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	// What slips down keeps its id: of what is known, only its parent is wrong then.
	defer n.cfg.Namespace.topology.forget()
	a, err := worker.Call(call, n.cfg.Pool, touch.TakeBeneath, touch.TakeBeneathQuery{
		Target:     top.Path,
		Top:        ref(top),
		Dead:       ref(dead),
		Superblock: touch.Number(dead.Dev),
	})
	if err == nil && !a.Done {
		err = errors.New("the worker did not do it")
	}
	return err
}
