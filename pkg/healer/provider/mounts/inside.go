package mounts

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const adviceAgain = "call again; if it stays so, see which pod has so many processes"

const adviceContainer = "delete the pod, so that its containers start with the volume as it is now"

// judgeInside says what is wrong with what a container has.
func judgeInside(p healer.MountPoint) []healer.Condition {
	in := p.InContainer
	message := ""
	switch {
	case in.Mount.Guarded() && in.Inspection == (host.ContainerProbe{}):
		message = "an interrupted replacement left it unfinished"
	case in.Inspection.Unable != "" && !in.Inspection.Silent:
		message = "it has a filesystem instance that is no longer the volume's, and cannot be asked: " + in.Inspection.Unable
	case in.Inspection.Silent:
		message = "it has a filesystem instance that is no longer the volume's and does not answer"
	case in.Inspection.Errno != 0:
		message = "it still has the filesystem instance that ended: " + host.Answer{Asked: true, Op: "statx", Errno: in.Inspection.Errno}.String()
	default:
		message = "it still has a filesystem instance that shut itself down"
	}
	return []healer.Condition{{
		Status: healer.Inaccessible, Reason: healer.StaleInContainers, MountPoint: p.Path,
		Message: message, Advice: adviceContainer, Acute: true,
	}}
}

// judgeUnverified says which containers may have something else than the volume,
// where nobody can tell: at each mount point with one condition for each reason.
func judgeUnverified(c healer.Case) []healer.Condition {
	return append(
		uninspected(c, c.Unverified, "there before the filesystem instance was replaced"),
		uninspected(c, c.UnverifiedStart, "started while the volume may not have been mounted here")...)
}

func uninspected(c healer.Case, containers []host.Unverified, when string) (found []healer.Condition) {
	type same struct {
		at, why string
		nobody  bool // no one container is meant
	}
	who := map[same][]string{}
	var order []same
	for _, u := range containers {
		k := same{c.MountPoints[0].Path, u.Why, u.PodUID == ""}
		for _, p := range c.MountPoints {
			if p.Role == healer.RoleTarget && p.PodUID == u.PodUID && p.PodUID != "" {
				k.at = p.Path
				break
			}
		}
		if who[k] == nil {
			order = append(order, k)
		}
		who[k] = append(who[k], u.String())
	}
	for _, k := range order {
		advice := adviceContainer
		if k.nobody {
			advice = adviceAgain
		}
		found = append(found, healer.Condition{
			Status: healer.Degraded, Reason: healer.ContainerUnverified, MountPoint: k.at,
			Message: all(who[k]) + " " + when + ", and cannot be looked into: " + k.why,
			Advice:  advice,
		})
	}
	return found
}

// all names a few containers, with the verb that follows, and counts the rest.
func all(who []string) string {
	const named = 3
	switch rest := len(who) - named; {
	case rest > 0:
		return fmt.Sprintf("%s and %d more were", strings.Join(who[:named], ", "), rest)
	case len(who) > 1:
		return strings.Join(who, ", ") + " were"
	}
	return who[0] + " was"
}

// insides are the plans for the containers of one case, by mount point: one worker
// carries out all that may be.
type insides struct {
	host  Host
	plans map[string]host.ContainerSwap
}

// replaceInside puts the volume, as the host has it, instead of a dead mount
// in a container.
func (p Provider) replaceInside(c healer.Case, mountPoint healer.MountPoint, conditions []healer.Condition, all insides) healer.Step {
	plan, source, why := p.planInside(c, mountPoint, conditions)
	all.plans[mountPoint.Path] = plan
	s := healer.Step{
		Name: StepReplaceInContainer, MountPoint: mountPoint, Cost: healer.Replace, Heals: []healer.Reason{healer.StaleInContainers},
		Source: source.Dev(), Refused: why,
	}
	if why == "" {
		s.Together = all.run
	}
	if plan.Sharing == host.SharingUnknown {
		s.Note = "whose mount events it shared is not known, so it shares none now"
	}
	return s
}

func (all insides) run(ctx context.Context, steps []healer.Step, revalidate []func(context.Context) error) []error {
	errs := make([]error, len(steps))
	var plans []host.ContainerSwap
	var at []int
	var wg sync.WaitGroup
	for i := range steps { // side by side: one answer of the cluster serves all
		wg.Go(func() { errs[i] = revalidate[i](ctx) })
	}
	wg.Wait()
	for i, s := range steps {
		if errs[i] == nil {
			plans, at = append(plans, all.plans[s.MountPoint.Path]), append(at, i)
		}
	}
	if len(plans) == 0 {
		return errs
	}
	for n, err := range all.host.ReplaceInContainers(ctx, plans) {
		errs[at[n]] = err
	}
	return errs
}

// planInside says what a replacement in a container would do, and from which
// mount point on the host, or why there must be none.
func (p Provider) planInside(c healer.Case, mountPoint healer.MountPoint, conditions []healer.Condition) (plan host.ContainerSwap, source healer.MountPoint, why string) {
	in := mountPoint.InContainer
	was := in.Mount
	source, sub, found := sourceFor(c, mountPoint)
	switch {
	case p.containers == ContainersOff:
		return plan, source, "containers are left alone (--heal-containers=off)"
	case p.containers == ContainersFUSE && !healer.IsFUSE(was.FSType):
		return plan, source, fmt.Sprintf("only FUSE is healed in containers, and this is a %s (--heal-containers=fuse)", plain(was.FSType))
	case in.Proof == "":
		return plan, source, "not proven to be the volume's: " + in.WriteCheck
	case c.Record == nil:
		return plan, source, "the volume was never seen healthy on this node"
	case in.Inspection.Unable != "" || in.Inspection.Silent:
		return plan, source, "what the container has cannot be told to be dead"
	case !found:
		return plan, source, "the host has no healthy mount of the volume that shows the directory of the container's"
	case was.RootDeleted:
		return plan, source, "the directory that the container has was deleted"
	}
	for _, h := range c.MountPoints {
		if h.Role == healer.RoleTarget && h.PodUID == mountPoint.PodUID && sick(conditions, h.Path) {
			return plan, source, "the pod's mount point on the host is not healthy"
		}
	}
	plan = host.ContainerSwap{
		Container: in.ContainerMount, Attr: in.Attr, Source: source.Stack[0], Sub: sub, Sharing: in.Sharing,
		Ended: in.Ended, Stale: mountPoint.Stale(),
	}
	if plan.Sharing.FollowsHost() && (rank(source, mountPoint) != 0 || source.Stack[0].Propagation.Shared == 0) {
		plan.Sharing = host.SharingUnknown // with another mount than the runtime gave it
	}
	switch {
	case plan.Stale && len(in.Below) == 1 && in.Below[0].Guarded() && in.Below[0].Dev == source.Stack[0].Dev:
		plan.Ours = in.Below[0]
	case plan.Stale && len(in.Below) > 0:
		return plan, source, "several mounts stand there in the container"
	case plan.Stale && !p.host.CanReplace():
		return plan, source, notSupported
	case plan.Stale: // of the superblock that is to come, or of another one
	case was.Dev == source.Stack[0].Dev && len(in.Below) > 0 && in.Below[0].Dev != was.Dev && !p.host.CanReplace():
		plan.Ours, plan.Covers = was, in.Below[0]
		return plan, source, ""
	case was.Dev == source.Stack[0].Dev && len(in.Below) == 1 && in.Below[0].Dev != was.Dev:
		// Something came on top while ours was moved beneath, and is gone.
		plan.Stray, was = was, in.Below[0]
		plan.Container.Mount = was
	case was.Dev == source.Stack[0].Dev:
		plan.Ours = was
		return plan, source, ""
	case len(in.Below) == 1 && in.Below[0].Dev == source.Stack[0].Dev && in.Below[0].Root == path.Join(source.Stack[0].Root, sub):
		plan.Ours = in.Below[0]
	case len(in.Below) > 0 && (p.host.CanReplace() || len(in.Below)+1 >= maxCovered || !allDead(c, in.Below)):
		return plan, source, "several mounts stand there in the container"
	case !p.host.CanReplace() && (!p.host.CanCover() || !goneInside(in)):
		return plan, source, notSupported
	case !p.host.CanReplace():
		plan.Covers = was
	}
	switch {
	case in.Attr.Has(host.AttrNoSymFollow):
		return plan, source, "it is mounted nosymfollow, which marks an interrupted replacement"
	case was.Attr.Has(host.AttrIDMap) != source.Stack[0].Attr.Has(host.AttrIDMap):
		return plan, source, "of the host's mount and the container's only one maps ids"
	case was.Attr.Has(host.AttrIDMap):
		return plan, source, "its mount maps ids, and nothing shows that the host's maps them alike"
	}
	return plan, source, ""
}

// sourceFor gives the healthy mount point on the host that shows what a container has,
// and the directory below its root: what is published to its pod, else what is
// staged. The first shares mount events as the container's mount did.
func sourceFor(c healer.Case, mountPoint healer.MountPoint) (source healer.MountPoint, sub string, found bool) {
	best := noSource
	for _, p := range c.MountPoints {
		if p.InContainer != nil || rank(p, mountPoint) >= best || !p.Mounted() || p.Stack[0].Placeholder() {
			continue
		}
		now := p.Stack[0]
		below, beneath := below(now.Root, mountPoint.InContainer.Mount.Root)
		_, sick := disabled(c, p, nil)
		if host.IsNFS(now.FSType) && now.Source != mountPoint.InContainer.Mount.Source {
			beneath = false // the roots are "/" whatever they show
		}
		if beneath && now.FSType == mountPoint.InContainer.Mount.FSType && !sick {
			best, source, sub, found = rank(p, mountPoint), p, below, true
		}
	}
	return source, sub, found
}

const noSource = 3

func rank(p, mountPoint healer.MountPoint) int {
	switch {
	case p.Layout.Kind == host.LayoutSubpath:
		return noSource
	case p.Role == healer.RoleTarget && p.PodUID == mountPoint.PodUID:
		return 0
	case p.Role == healer.RoleStaging:
		return 1
	default:
		return 2
	}
}

func sick(conditions []healer.Condition, at string) bool {
	return slices.ContainsFunc(conditions, func(c healer.Condition) bool {
		return c.MountPoint == at && keepsSteps(c)
	})
}
