package engine

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// reportHeld adds to a report how often the sick superblocks are mounted, and in which
// containers: a person who is to unmount or check one has to know. Nothing is decided by
// it.
func (e *Engine) reportHeld(ctx context.Context, r *healer.Report) {
	var sick facts.Filter
	for _, cond := range r.After.Conditions {
		p, _ := r.After.Case.MountPoint(cond.MountPoint)
		// That of a device node is devtmpfs.
		if top, mounted := p.Top(); mounted && !top.MayBeNode() && !slices.Contains(sick.Superblocks, top.Dev) {
			sick.Superblocks = append(sick.Superblocks, top.Dev)
		}
	}
	if len(sick.Superblocks) == 0 {
		return
	}
	table, err := e.cfg.Node.Topology()
	if err == nil {
		var found node.Containers
		found, err = e.cfg.Node.InContainers(ctx, nil, sick)
		addHeld(&r.Held, found)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell which containers have the volume mounted")
		return
	}
	for _, dev := range sick.Superblocks {
		r.Held.Mounts += len(table.Of(dev))
	}
}

func addHeld(h *healer.Held, found node.Containers) {
	name := func(podUID, containerID string) {
		if w := healer.WorkloadName(podUID, containerID); w != "" && !slices.Contains(h.By, w) {
			h.By = append(h.By, w)
		}
	}
	h.Mounts = len(found.Mounts)
	for _, m := range found.Mounts {
		name(m.PodUID, m.ContainerID)
	}
	for _, u := range found.Unverified {
		if u.Has {
			name(u.PodUID, u.ContainerID)
		}
	}
}
