package containers

import (
	"context"
	"fmt"
	"path"
	"sync"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// StepReplaceInContainer is the step's name.
const StepReplaceInContainer = "replace-in-container"

// replace offers to put the volume, as the host has it, in place of a dead mount in a
// container.
func (p Provider) replace(c healer.Case, mp healer.MountPoint, all batch) healer.Step {
	plan, source, refused := p.plan(c, mp)
	all.plans[mp.Path] = plan
	s := healer.Step{
		Name: StepReplaceInContainer, MountPoint: mp, Cost: healer.Replace, Heals: []healer.Reason{healer.StaleInContainers},
		Source: source.Dev(), Refused: refused,
	}
	if refused == "" {
		s.RunBatch = all.run
	}
	if plan.Sharing == facts.SharingUnknown {
		s.Note = "how it shared mount events is not known or not kept, so it shares none now"
	}
	return s
}

// batch holds the plans of one case by mount point: one worker replaces in all
// containers, and the engine decides which of the steps may run.
type batch struct {
	host  Host
	plans map[string]facts.ContainerSwap
}

func (b batch) run(ctx context.Context, steps []healer.Step, revalidate []func(context.Context) error) []error {
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i := range steps { // side by side: one answer of the cluster serves all
		wg.Go(func() { errs[i] = revalidate[i](ctx) })
	}
	wg.Wait()
	var plans []facts.ContainerSwap
	var of []int
	for i, s := range steps {
		if errs[i] == nil {
			plans, of = append(plans, b.plans[s.MountPoint.Path]), append(of, i)
		}
	}
	if len(plans) > 0 {
		for n, err := range b.host.ReplaceInContainers(ctx, plans) {
			errs[of[n]] = err
		}
	}
	return errs
}

// plan returns what a replacement would do and the mount point on the host that it
// clones, or why there must be none.
func (p Provider) plan(c healer.Case, mp healer.MountPoint) (plan facts.ContainerSwap, source healer.MountPoint, refused string) {
	in := mp.InContainer
	source, sub, found := sourceFor(c, mp)
	if refused = p.refuse(c, mp); refused != "" {
		return plan, source, refused
	}
	switch {
	case !found:
		return plan, source, "the host has no healthy mount of the volume that shows the container's directory"
	case in.Mount.RootDeleted && !facts.IsType(in.Mount.FSType, facts.MayHang):
		return plan, source, "the directory that the container has was deleted"
	}
	for _, target := range c.MountPoints {
		if _, unusable := c.Unusable(target); unusable && target.Role == healer.RoleTarget && target.PodUID == mp.PodUID {
			return plan, source, "the pod's mount point on the host is not healthy"
		}
	}
	now := source.Stack[0]
	plan = facts.ContainerSwap{
		Container: in.ContainerMount, Attr: in.Attr, Source: now, Sub: sub, Sharing: in.Sharing,
		Ended: in.Ended, Stale: mp.Stale(),
	}
	if plan.Sharing.FollowsHost() && (rank(source, mp) != 0 || now.Propagation.Shared == 0) {
		plan.Sharing = facts.SharingUnknown // the source is not the mount that the runtime bound
	}
	unfinished := in.Mount.Dev == now.Dev && !plan.Stale
	switch {
	case unfinished && len(in.Below) > 0 && in.Below[0].Dev != now.Dev && !p.host.CanReplace():
		plan.Ours, plan.Covers = in.Mount.Ref(), in.Below[0]
		return plan, source, ""
	case unfinished && len(in.Below) == 1 && in.Below[0].Dev != now.Dev:
		// The container mounted on top while ours was moved beneath, and has unmounted that.
		return plan, source, "an interrupted replacement left a mount on top of the dead one"
	case unfinished:
		plan.Ours = in.Mount.Ref()
		return plan, source, ""
	default:
		if refused = p.placeClone(c, in, &plan); refused != "" {
			return plan, source, refused
		}
	}
	return plan, source, refuseAttr(in.Attr, plan.Container.Mount.Attr, now.Attr)
}

// refuse says why nothing may be replaced at a mount point, whatever the host has.
func (p Provider) refuse(c healer.Case, mp healer.MountPoint) string {
	in := mp.InContainer
	switch {
	case p.scope == Off:
		return "containers are left alone (--heal-containers=off)"
	case p.scope == FUSE && !facts.IsFUSE(in.Mount.FSType):
		return fmt.Sprintf("only FUSE is healed in containers, and this is a %s (--heal-containers=fuse)", healer.QuoteName(in.Mount.FSType))
	case in.Proof == "":
		return "not proven to be the volume's: " + in.Unproven
	case c.Record == nil:
		return "the volume was never seen healthy on this node"
	case in.Probe.Err != "" || in.Probe.TimedOut || facts.MayWork(in.Mount.FSType, in.Probe.Errno):
		return "what the container has cannot be told to be dead"
	}
	return ""
}

// placeClone decides where the clone goes at a dead mount: beneath it, on top of it, or
// nowhere because an interrupted replacement has put it beneath already.
func (p Provider) placeClone(c healer.Case, in *healer.InContainer, plan *facts.ContainerSwap) (refused string) {
	const several = "several mounts are stacked there in the container"
	now, below := plan.Source, in.Below
	ours := len(below) == 1 && below[0].Dev == now.Dev &&
		(plan.Stale && below[0].Guarded() || !plan.Stale && below[0].Root == path.Join(now.Root, plan.Sub))
	cover := !p.host.CanReplace() && !plan.Stale
	switch {
	case ours:
		plan.Ours = below[0].Ref()
	case len(below) > 0 && (!cover || len(below)+1 >= healer.MaxCovered || !c.AllReplaced(below)):
		return several
	case cover && p.host.CanCover() && facts.IsFUSE(in.Mount.FSType) && facts.MayBeCovered(in.Probe.Errno):
		plan.Covers = in.Mount
	case !p.host.CanReplace():
		return healer.ReplaceNotSupported
	}
	return ""
}

// refuseAttr says which attributes of the container's mount cannot be given to a clone
// of the host's.
func refuseAttr(want, was, now facts.Attr) string {
	switch {
	case want.Has(facts.AttrNoSymFollow):
		return "it is mounted nosymfollow, which marks an interrupted replacement"
	case was.Has(facts.AttrIDMap) != now.Has(facts.AttrIDMap):
		return "of the host's mount and the container's only one maps ids"
	case was.Has(facts.AttrIDMap):
		return "its mount maps ids, and nothing shows that the host's maps them alike"
	}
	return ""
}

// sourceFor returns the healthy mount point on the host that shows what a container
// has, and the directory below its root: what is published to its pod, which shares
// mount events as the container's mount did, else what is staged, else another target.
func sourceFor(c healer.Case, mp healer.MountPoint) (source healer.MountPoint, sub string, found bool) {
	was := mp.InContainer.Mount
	best := noSource
	for _, p := range c.MountPoints {
		if p.InContainer != nil || rank(p, mp) >= best || !p.Mounted() || p.Stack[0].Placeholder() {
			continue
		}
		now := p.Stack[0]
		dir, shown := facts.Below(now.Root, was.Root)
		if !now.OnDevice() && now.Source != was.Source {
			shown = false // on NFS the root is "/" whichever directory is mounted, and another pod's mount may be of its own
		}
		if _, unusable := c.Unusable(p); shown && now.FSType == was.FSType && !unusable {
			best, source, sub, found = rank(p, mp), p, dir, true
		}
	}
	return source, sub, found
}

const noSource = 3

// rank orders mount points as sources for one in a container; noSource is none.
func rank(p, mp healer.MountPoint) int {
	switch {
	case p.Layout.Kind == layout.Subpath: // a copy itself
		return noSource
	case p.Role == healer.RoleTarget && p.PodUID == mp.PodUID:
		return 0
	case p.Role == healer.RoleStaging:
		return 1
	default:
		return 2
	}
}
