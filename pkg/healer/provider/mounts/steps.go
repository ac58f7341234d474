package mounts

import (
	"context"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// The steps' names.
const (
	StepRebind           = "rebind"
	StepUnmountDuplicate = "unmount-duplicate"
	StepReplace          = "replace"
	StepCover            = "cover"
	StepUnmountDeadTop   = "unmount-dead-top"
)

// steps offers what may help at a mount point.
func (p Provider) steps(c healer.Case, mountPoint healer.MountPoint) []healer.Step {
	switch {
	case mountPoint.Role != healer.RoleTarget:
		return nil // staging is the driver's business
	case outlived(c, mountPoint) && p.covers(c, mountPoint):
		return []healer.Step{p.cover(c, mountPoint)}
	case outlived(c, mountPoint) && len(mountPoint.Stack) == 1:
		return []healer.Step{p.replace(c, mountPoint)}
	case outlived(c, mountPoint):
		return []healer.Step{p.unmountDeadTop(c, mountPoint)}
	case len(mountPoint.Stack) == 0 || interrupted(c, mountPoint):
		return []healer.Step{p.rebind(c, mountPoint)}
	case leftBehind(mountPoint):
		return []healer.Step{p.unmountDuplicate(mountPoint)}
	}
	return nil
}

// rebind binds the healthy staged mount at the mount point, or finishes a rebind that
// was interrupted between its halves.
func (p Provider) rebind(c healer.Case, mountPoint healer.MountPoint) healer.Step {
	s := healer.Step{
		Name:       StepRebind,
		MountPoint: mountPoint,
		Cost:       healer.Rebind,
		Heals:      []healer.Reason{healer.NotMounted, healer.ReadOnlyFilesystem},
	}
	staged, _ := c.Staged()
	s.Source = staged.Dev()
	plan, why := planRebind(c, mountPoint, staged)
	if len(mountPoint.Stack) > 1 {
		plan.Covers = mountPoint.Stack[1]
	}
	s.Refused = why
	if why != "" {
		return s
	}
	s.Run = func(ctx context.Context, revalidate func(context.Context) error) error {
		if len(mountPoint.Stack) > 0 {
			return p.host.Finish(ctx, plan, mountPoint.Stack[0], revalidate)
		}
		return p.host.Rebind(ctx, plan, revalidate)
	}
	return s
}

// planRebind says what a rebind would do, or why there must be none.
func planRebind(c healer.Case, mountPoint, staged healer.MountPoint) (host.RebindPlan, string) {
	var none host.RebindPlan
	wantStaged := c.Record.Staged()
	switch {
	case c.Record == nil || mountPoint.Want == nil:
		return none, "the volume was never seen healthy at this mount point, so how it was mounted is not known"
	case wantStaged == nil:
		return none, "the volume has no staged mount to bind from"
	case len(staged.Stack) == 0:
		return none, "the staged mount to bind from is gone"
	case len(staged.Stack) > 1:
		return none, "several mounts stand on the staging path"
	case wantStaged.Path != staged.Path:
		return none, "the recorded staging path is another one"
	case mountPoint.Want.Dev != wantStaged.Dev:
		return none, "what was published there was not the staged filesystem"
	case host.IsNFS(staged.Stack[0].FSType) && mountPoint.Want.Source != staged.Stack[0].Source:
		return none, "the mount point is not known to have shown the directory of the server that is staged"
	case mountPoint.Want.Attr.Has(host.AttrIDMap) != staged.Stack[0].Attr.Has(host.AttrIDMap):
		return none, "the recorded mount had another ID mapping than the staged one"
	}
	for _, cond := range c.Found {
		if cond.MountPoint == mountPoint.Path && cond.Disables() && cond.Reason != healer.NotMounted {
			return none, notHealthy(cond)
		}
	}
	if sick, found := c.Unusable(staged); found {
		return none, notHealthy(sick)
	}
	if interrupted(c, mountPoint) && mountPoint.Dev() != staged.Dev() {
		return none, "the placeholder there is not of the staged filesystem"
	}
	sub, beneath := healer.Below(wantStaged.Root, mountPoint.Want.Root)
	if !beneath {
		return none, "the recorded directory does not lie below the staged one"
	}
	return host.RebindPlan{
		Staged:  staged.Stack[0],
		Sub:     sub,
		Target:  mountPoint.Path,
		Attr:    mountPoint.Want.Attr,
		Private: mountPoint.Want.Propagation.Shared == 0 && mountPoint.Want.Propagation.Master == 0,
		Shared:  mountPoint.Want.Propagation.Shared != 0,
	}, ""
}

func notHealthy(c healer.Condition) string {
	return fmt.Sprintf("the volume itself is not healthy (%s)", c.Reason)
}

// unmountDuplicate removes an placeholder of ours that came to stand on top of the
// driver's own.
func (p Provider) unmountDuplicate(mountPoint healer.MountPoint) healer.Step {
	return healer.Step{
		Name:       StepUnmountDuplicate,
		MountPoint: mountPoint,
		Cost:       healer.Rebind,
		Heals:      []healer.Reason{healer.StackedMounts},
		Source:     mountPoint.Dev(),
		Run: func(ctx context.Context, revalidate func(context.Context) error) error {
			return p.host.UnmountDuplicate(ctx, mountPoint.Stack[0], revalidate)
		},
	}
}
