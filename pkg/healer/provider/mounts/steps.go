package mounts

import (
	"context"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The steps' names.
const (
	StepRebind           = "rebind"
	StepUnmountDuplicate = "unmount-duplicate"
	StepReplace          = "replace"
	StepCover            = "cover"
	StepUnmountDeadTop   = "unmount-dead-top"
)

// steps returns what may help at a mount point.
func (p Provider) steps(c healer.Case, mp healer.MountPoint) []healer.Step {
	switch {
	case mp.Role != healer.RoleTarget:
		return nil // only the driver stages
	case outlived(c, mp) && p.covers(c, mp):
		return []healer.Step{p.cover(c, mp)}
	case outlived(c, mp) && len(mp.Stack) == 1:
		return []healer.Step{p.replace(c, mp)}
	case outlived(c, mp):
		return []healer.Step{p.unmountDeadTop(c, mp)}
	case len(mp.Stack) == 0 || interrupted(c, mp):
		return []healer.Step{p.rebind(c, mp)}
	case leftBehind(mp):
		return []healer.Step{p.unmountDuplicate(mp)}
	}
	return nil
}

// rebind offers to bind the healthy staged mount at the mount point, or to finalize the
// placeholder of a rebind that was interrupted.
func (p Provider) rebind(c healer.Case, mp healer.MountPoint) healer.Step {
	s := healer.Step{
		Name:       StepRebind,
		MountPoint: mp,
		Cost:       healer.Rebind,
		Heals:      []healer.Reason{healer.NotMounted, healer.ReadOnlyFilesystem},
	}
	staged, _ := c.Staged()
	s.Source = staged.Dev()
	plan, why := planRebind(c, mp, staged)
	if len(mp.Stack) > 1 {
		plan.Covers = mp.Stack[1]
	}
	return offered(s, why, func(ctx context.Context, revalidate func(context.Context) error) error {
		if len(mp.Stack) > 0 {
			return p.host.Finish(ctx, plan, mp.Stack[0], revalidate)
		}
		return p.host.Rebind(ctx, plan, revalidate)
	})
}

// offered returns a step that runs so, or that is refused if there is a reason.
func offered(s healer.Step, refused string, run func(ctx context.Context, revalidate func(context.Context) error) error) healer.Step {
	if s.Refused = refused; refused == "" {
		s.Run = run
	}
	return s
}

// planRebind returns what a rebind would do, or why there must be none. Nothing at the mount point
// shows how it was mounted: the record does.
func planRebind(c healer.Case, mp, staged healer.MountPoint) (facts.RebindPlan, string) {
	var none facts.RebindPlan
	wantStaged := c.Record.Staged()
	switch {
	case c.Record == nil || mp.Want == nil:
		return none, "the volume was never seen healthy at this mount point, so how it was mounted is not known"
	case wantStaged == nil:
		return none, "the volume has no staged mount to bind from"
	}
	if why := unfit(c, staged); why != "" {
		return none, why
	}
	switch {
	case len(staged.Stack) > 1:
		return none, "several mounts are stacked on the staging path"
	case mp.Want.Dev != wantStaged.Dev:
		return none, "what was published there was not the staged filesystem"
	case facts.IsNFS(staged.Stack[0].FSType) && mp.Want.Source != staged.Stack[0].Source:
		return none, "the mount point is not known to have shown the directory of the server that is staged"
	case mp.Want.Attr.Has(facts.AttrIDMap) != staged.Stack[0].Attr.Has(facts.AttrIDMap):
		return none, "the recorded mount had another ID mapping than the staged one"
	case interrupted(c, mp) && mp.Dev() != staged.Dev():
		return none, "the placeholder there is not of the staged filesystem"
	}
	for _, cond := range c.Found {
		if cond.MountPoint == mp.Path && cond.Disables() && cond.Reason != healer.NotMounted {
			return none, notHealthy(cond)
		}
	}
	sub, beneath := facts.Below(wantStaged.Root, mp.Want.Root)
	if !beneath {
		return none, "the recorded directory does not lie below the staged one"
	}
	return planOf(mp, staged, sub, mp.Want.Attr, mp.Want.Propagation), ""
}

// planOf returns what puts a directory of the staged mount at a mount point.
func planOf(mp, staged healer.MountPoint, sub string, attr facts.Attr, was facts.Propagation) facts.RebindPlan {
	return facts.RebindPlan{
		Staged: staged.Stack[0], Sub: sub, Target: mp.Path, Attr: attr,
		Private: was.Shared == 0 && was.Master == 0, Shared: was.Shared != 0,
	}
}

func notHealthy(c healer.Condition) string {
	return fmt.Sprintf("the volume itself is not healthy (%s)", c.Reason)
}

// unmountDuplicate offers to unmount a placeholder that is on top of the driver's own
// mount.
func (p Provider) unmountDuplicate(mp healer.MountPoint) healer.Step {
	return healer.Step{
		Name:       StepUnmountDuplicate,
		MountPoint: mp,
		Cost:       healer.Rebind,
		Heals:      []healer.Reason{healer.StackedMounts},
		Source:     mp.Dev(),
		Run: func(ctx context.Context, revalidate func(context.Context) error) error {
			return p.host.UnmountTop(ctx, facts.UnmountPlan{Top: mp.Stack[0], Placeholder: true, Below: mp.Stack[1].Ref()}, revalidate)
		},
	}
}
