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
		place, _ := r.After.Case.Place(cond.Place)
		top, mounted := place.Top()
		if !mounted {
			continue
		}
		h := host.Holdable{Superblock: top.Dev}
		sb := r.After.Case.Superblocks[place.Dev()]
		if sb.Device != nil {
			h.Device = sb.Device.Dev
		}
		if top.MayBeNode() {
			h.Superblock = host.Dev{} // that of devtmpfs
		}
		if h.Device.Zero() && r.After.Case.Block && place.Want != nil && r.After.Case.Record.BootID == r.After.Case.BootID {
			h.Device = place.Want.Dev // it does not answer, so nobody saw it now
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
