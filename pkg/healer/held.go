package healer

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// whoHolds adds to a report who holds the sick superblocks and devices: whoever
// is to unmount or check one has to know. Nothing is decided by it.
func (e *Engine) whoHolds(ctx context.Context, r *Report) {
	var asked []host.Holdable
	for _, cond := range r.After.Conditions {
		mountPoint, _ := r.After.Case.MountPoint(cond.MountPoint)
		top, mounted := mountPoint.Top()
		if !mounted {
			continue
		}
		h := host.Holdable{Superblock: top.Dev}
		sb := r.After.Case.Superblocks[mountPoint.Dev()]
		if sb.Device != nil {
			h.Device = sb.Device.Dev
		}
		if top.MayBeNode() {
			h.Superblock = host.Dev{} // that of devtmpfs
		}
		if h.Device.Zero() && r.After.Case.Block && mountPoint.Want != nil && r.After.Case.Record.BootID == r.After.Case.BootID {
			h.Device = mountPoint.Want.Dev // it does not answer, so nobody saw it now
		}
		if h == (host.Holdable{}) {
			continue
		}
		if !slices.Contains(asked, h) {
			asked = append(asked, h)
		}
	}
	if len(asked) == 0 {
		return
	}
	held, err := e.cfg.Node.Holders(ctx, asked)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell who holds the volume")
		return
	}
	for _, h := range asked {
		r.Holders = append(r.Holders, held[h])
	}
}

// whoNeedsRestart adds to a report which processes have files open on a filesystem
// instance that was replaced: only they can open them anew.
func (e *Engine) whoNeedsRestart(ctx context.Context, r *Report) {
	var asked []host.Holdable
	for _, o := range r.Steps {
		mountPoint, found := r.Before.Case.MountPoint(o.MountPoint)
		if o.Err != nil || !found || len(mountPoint.Stack) == 0 || mountPoint.Stack[0].MayBeNode() {
			continue
		}
		now, _ := r.After.Case.working()
		h := host.Holdable{Superblock: mountPoint.Stack[0].Dev}
		if h.Superblock != now.Dev && !slices.Contains(asked, h) {
			asked = append(asked, h)
		}
	}
	if len(asked) == 0 {
		return
	}
	held, err := e.cfg.Node.Holders(ctx, asked)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell who holds files of what was replaced")
		return
	}
	for _, h := range asked {
		if who := held[h]; len(who.Processes) > 0 {
			r.Restart = append(r.Restart, host.Holders{Processes: who.Processes, Cut: who.Cut})
		}
	}
}
