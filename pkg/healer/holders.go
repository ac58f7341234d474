package healer

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// reportHolders adds to a report who holds the sick superblocks and devices: a person
// who is to unmount or check one has to know. Nothing is decided by it.
func (e *Engine) reportHolders(ctx context.Context, r *Report) {
	var asked []host.Holdable
	for _, cond := range r.After.Conditions {
		if h := holdable(r.After.Case, cond.MountPoint); h != (host.Holdable{}) && !slices.Contains(asked, h) {
			asked = append(asked, h)
		}
	}
	held := e.holders(ctx, asked)
	for _, h := range asked {
		if who, known := held[h]; known {
			r.Holders = append(r.Holders, who)
		}
	}
}

// holdable returns the superblock and the device at a mount point.
func holdable(c Case, path string) (h host.Holdable) {
	p, _ := c.MountPoint(path)
	top, mounted := p.Top()
	if !mounted {
		return h
	}
	if !top.MayBeNode() { // its superblock is that of devtmpfs
		h.Superblock = top.Dev
	}
	if sb := c.Superblocks[p.Dev()]; sb.Device != nil {
		h.Device = sb.Device.Dev
	}
	if h.Device.Zero() && c.Block && p.Want != nil && c.Record.BootID == c.BootID {
		h.Device = p.Want.Dev // the node did not answer, so its number was not seen now
	}
	return h
}

// reportRestarts adds to a report which processes have files open on a filesystem
// instance that was replaced: only they can open them anew.
func (e *Engine) reportRestarts(ctx context.Context, r *Report) {
	if len(r.Steps) == 0 {
		return
	}
	now, _ := r.After.Case.working()
	var asked []host.Holdable
	for _, o := range r.Steps {
		p, found := r.Before.Case.MountPoint(o.MountPoint)
		if o.Err != nil || !found || len(p.Stack) == 0 || p.Stack[0].MayBeNode() {
			continue
		}
		if h := (host.Holdable{Superblock: p.Stack[0].Dev}); h.Superblock != now.Dev && !slices.Contains(asked, h) {
			asked = append(asked, h)
		}
	}
	held := e.holders(ctx, asked)
	for _, h := range asked {
		if who := held[h]; len(who.Processes) > 0 {
			r.Restart = append(r.Restart, host.Holders{Processes: who.Processes, Cut: who.Cut})
		}
	}
}

// holders returns nil when it cannot be told.
func (e *Engine) holders(ctx context.Context, asked []host.Holdable) map[host.Holdable]host.Holders {
	if len(asked) == 0 {
		return nil
	}
	held, err := e.cfg.Node.Holders(ctx, asked)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell who holds the volume")
		return nil
	}
	return held
}
