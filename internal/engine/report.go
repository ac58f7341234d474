package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// report says what became of a volume, after the last observation.
func (e *Engine) report(ctx context.Context, r healer.Report, t tries, checks bool) (healer.Report, error) {
	for _, o := range r.Steps {
		if healer.KindOf(o.Err) == healer.KindUnauthenticated {
			// Other secrets may heal it.
			return r, &healer.Error{Kind: healer.KindUnauthenticated, Step: o.Step, Text: "step " + o.Step, Err: o.Err}
		}
	}
	r.Refused = t.refusals(r.Steps)
	for _, c := range seenBySteps(r.Steps) {
		if !slices.Contains(r.After.Conditions, c) {
			r.After.Conditions = append(r.After.Conditions, c)
		}
	}
	if !checks { // it costs a walk through all processes
		e.reportHeld(ctx, &r)
	}
	return r, nil
}

// failEnded has the steps count as failed that had the volume staged anew, where what is
// staged is dead again.
func failEnded(steps []healer.Outcome, c healer.Case) {
	staged, found := c.Staged()
	if !found || !facts.Disconnected(c.Superblock(staged).Answer.Errno) {
		return
	}
	for i, o := range steps {
		if o.Cost == healer.Restage && o.Err == nil {
			steps[i].Err = fmt.Errorf("the driver mounted the volume, and the daemon has ended already: %w", c.Superblock(staged).Answer.Errno)
		}
	}
}

// seenBySteps returns the conditions that a step saw. It looks once more for files in the way right
// before it would hide them, and asks right before a staged volume becomes usable whether a pod
// still wants it: to unstage it is kubelet's business.
func seenBySteps(steps []healer.Outcome) (found []healer.Condition) {
	for _, o := range steps {
		switch {
		case errors.Is(o.Err, healer.ErrRefused) && errors.Is(o.Err, syscall.ENOTEMPTY):
			found = append(found, healer.FilesInTheWay(o.MountPoint))
		case errors.Is(o.Err, healer.ErrNotWanted):
			found = append(found, healer.Condition{
				Status: healer.Degraded, Reason: healer.StagedWithoutPod, MountPoint: o.MountPoint,
				Message: "the driver staged the volume anew while the last pod that wanted it went",
				Advice:  "if no pod of this node uses the volume later, unmount it there",
			})
		}
	}
	return found
}

// reportHeld adds to a report how often the sick superblocks are mounted, and in which
// containers: a person who is to unmount or check one has to know. Nothing is decided by
// it.
func (e *Engine) reportHeld(ctx context.Context, r *healer.Report) {
	var sick facts.Filter
	for _, cond := range r.After.Conditions {
		p, _ := r.After.Case.MountPoint(cond.MountPoint)
		top, mounted := p.Top()
		if !mounted || top.MayBeNode() { // that of a device node is devtmpfs
			continue
		}
		if r.After.Case.ShowsAll(top.Dev) {
			sick.Superblocks = append(sick.Superblocks, top.Dev)
		} else {
			sick.Beneath = append(sick.Beneath, facts.Directory{Dev: top.Dev, Path: top.Root})
		}
	}
	if len(sick.Superblocks)+len(sick.Beneath) == 0 {
		return
	}
	table, tableErr := e.cfg.Node.Topology()
	found, err := e.cfg.Node.InContainers(ctx, nil, sick, false)
	if err := errors.Join(tableErr, err); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell which containers have the volume mounted")
		return
	}
	r.Held.Mounts = len(found.Mounts)
	for _, m := range table.Mounts() {
		if sick.Wants(m) {
			r.Held.Mounts++
		}
	}
	var by []facts.Workload
	for _, m := range found.Mounts {
		by = append(by, m.Workload)
	}
	for _, u := range found.Unverified {
		if u.Has {
			by = append(by, u.Workload)
		}
		r.Held.More = r.Held.More || u.Has || u.PodUID == "" || slices.ContainsFunc(r.After.Case.MountPoints, func(p healer.MountPoint) bool { return p.PodUID == u.PodUID })
	}
	for _, w := range by {
		if name := healer.WorkloadName(w.PodUID, w.ContainerID); name != "" && !slices.Contains(r.Held.By, name) {
			r.Held.By = append(r.Held.By, name)
		}
	}
}
