// Package mounts is the generic provider: what the mount table, sysfs, a probe and, on
// suspicion, a write show of any filesystem or raw block volume on the host, and the
// steps that change nothing but where a healthy staged mount is bound.
//
// It examines every volume. What only one kind of storage knows belongs into a
// package of its own beside this one, and what containers have into containers.
package mounts

import (
	"context"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Host is what the steps ask of the host; *node.Node is the real one.
type Host interface {
	CanReplace() bool
	CanCover() bool
	Place(ctx context.Context, plan facts.PlacePlan, revalidate func(context.Context) error) error
	UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error
}

// Provider is the generic provider.
type Provider struct{ host Host }

// New returns the provider.
func New(h Host) Provider { return Provider{host: h} }

// Name implements healer.Provider.
func (Provider) Name() string { return "mounts" }

// Examine implements healer.Provider. What containers have is not its business.
func (p Provider) Examine(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true, Conditions: p.diagnose(c)}
	c.Found = slices.Concat(c.Found, f.Conditions)
	for _, mp := range c.MountPoints {
		f.Steps = append(f.Steps, p.steps(c, mp)...)
	}
	return f, nil
}

// diagnose judges each superblock once, at the first mount point that shows it, and again
// at each mount point where it is to be replaced or has an answer of its own.
func (p Provider) diagnose(c healer.Case) (found []healer.Condition) {
	judged := map[facts.Dev]bool{}
	for _, mp := range c.MountPoints {
		if mp.InContainer != nil {
			continue
		}
		covered := !p.host.CanReplace() && onlyDeadBeneath(c, mp) // this provider stacked them
		for _, cond := range judgeMountPoint(c, mp) {
			if !covered || cond.Reason != healer.StackedMounts {
				found = append(found, cond)
			}
		}
		if len(mp.Stack) == 0 {
			continue
		}
		dev, outlived, alone := mp.Dev(), outlived(c, mp), c.AnswersAlone(mp)
		if judged[dev] && !outlived && !alone {
			continue
		}
		judged[dev] = judged[dev] || !alone
		for _, cond := range judgeSuperblock(c, mp) {
			cond.Acute = cond.Acute || outlived && slices.Contains(deadReasons, cond.Reason)
			found = append(found, cond)
		}
	}
	return found
}

// What a person should do, for conditions that no step here heals.
const (
	adviceRepublish = "delete the pod, so that kubelet publishes the volume anew"
	adviceRestage   = "delete all pods on this node that use the volume, so that the driver stages it anew"
	adviceCovered   = "nothing where the driver mounts anew over a daemon that has ended, as JuiceFS does; else " + adviceRestage
	adviceRecord    = "see what mounted it; if it is right, remove the volume's record from the state directory"
	adviceWrong     = "see what mounted it; if it is wrong, delete the pod, so that kubelet publishes the volume anew"
	adviceNamed     = "see whether the path is right: neither kubelet's layout nor a record shows that the volume belongs there. Remove nothing of it"
	adviceLookUp    = "look the directory up where the volume is staged, which mends a lookup that failed; if it was deleted, " + adviceRepublish
	adviceStacked   = "see what mounted twice, and unmount the top when no container uses it"
)

// judgeMountPoint returns what is wrong with how the volume is mounted at a mount point.
func judgeMountPoint(c healer.Case, p healer.MountPoint) []healer.Condition {
	if len(p.Stack) == 0 {
		return judgeEmpty(c, p)
	}
	var found []healer.Condition
	switch mayHang := facts.IsType(p.Stack[0].FSType, facts.MayHang); {
	case !p.Stack[0].RootDeleted:
	case mayHang && c.Superblock(p).Works(): // of one that does not answer a lookup may have dropped the name
		found = append(found, conditionAt(p, healer.Degraded, healer.StaleFileHandle, adviceLookUp, "the directory that the mount shows was deleted, or a lookup of it failed"))
	// The node of a disk that was detached is deleted; where that very disk is back under the same number, the node works.
	case !mayHang && (p.Inspect.Kind != facts.KindBlock || !healer.SameDisk(c, c.Superblock(p))):
		found = append(found, conditionAt(p, healer.Inaccessible, healer.StaleFileHandle, adviceRepublish, "the directory that the mount shows was deleted"))
	}
	if len(p.Stack) > 1 && !narrowed(p) && !sameNode(p) {
		found = append(found, stacked(c, p))
	}
	if wrong := wrongVolume(c, p); wrong != "" {
		advice := adviceRecord
		if p.Want == nil {
			advice = adviceWrong
		}
		found = append(found, conditionAt(p, healer.Inaccessible, healer.WrongVolumeMounted, advice, "%s", wrong))
	}
	if c.Block && p.Inspect.Kind != facts.KindBlock && p.Inspect.Kind != facts.KindNone {
		found = append(found, conditionAt(p, healer.Inaccessible, healer.NotABlockDevice, adviceRepublish, "a raw block volume is expected, and a %s is there", p.Inspect.Kind))
	}
	return append(found, judgeReadOnlyMount(c, p)...)
}

func judgeEmpty(c healer.Case, p healer.MountPoint) []healer.Condition {
	below := p.Layout.Base != "" && p.Path != p.Layout.Base
	switch {
	case p.Role == healer.RoleStaging && p.Want == nil:
		// Many drivers stage nothing, or stage below the path they were given.
		return nil
	case p.Role == healer.RoleStaging && below && p.Inspect.Missing() && facts.IsType(c.Record.FSType, facts.Disk):
		// The driver took its own directory away, as Trident does, which mounts a disk there while it expands
		// the filesystem ("tmp_mnt") and otherwise only at the targets.
		return nil
	case p.Role == healer.RoleStaging:
		return []healer.Condition{conditionAt(p, healer.Inaccessible, healer.StagingNotMounted, adviceRestage, "the mount recorded there is gone")}
	}
	lost := conditionAt(p, healer.Inaccessible, healer.NotMounted, adviceRepublish, "the path exists and nothing is mounted on it")
	lost.Acute = true
	files := healer.FilesInTheWay(p.Path)
	if p.Want == nil && p.Layout.Kind == layout.Other { // it may be above a mount of the volume, or in it, and the files the volume's
		lost.Advice, files.Advice, files.Message = adviceNamed, adviceNamed, "the path is not empty"
	}
	if p.Inspect.NotEmpty { // or the advice would be to delete the pod, and with it these files
		return []healer.Condition{lost, files}
	}
	return []healer.Condition{lost}
}

// conditionAt is one of a mount point, and not of the filesystem behind it.
func conditionAt(p healer.MountPoint, s healer.Status, r healer.Reason, advice, format string, args ...any) healer.Condition {
	return healer.Condition{Status: s, Reason: r, MountPoint: p.Path, Message: fmt.Sprintf(format, args...), Advice: advice}
}

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
	case outlived(c, mp) && (len(mp.Stack) == 1 || p.covers(c, mp)):
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
	if len(mp.Stack) > 0 {
		plan.Placed = mp.Stack[0].Ref()
	}
	if len(mp.Stack) > 1 {
		plan.Position, plan.Dead = facts.OnDead, mp.Stack[1]
	}
	return p.place(s, why, plan)
}

// place returns a step that carries out the plan, or that is refused if there is a reason.
func (p Provider) place(s healer.Step, refused string, plan facts.PlacePlan) healer.Step {
	return offered(s, refused, func(ctx context.Context, revalidate func(context.Context) error) error {
		return p.host.Place(ctx, plan, revalidate)
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
func planRebind(c healer.Case, mp, staged healer.MountPoint) (facts.PlacePlan, string) {
	var none facts.PlacePlan
	wantStaged := c.Record.Staged()
	switch {
	case c.Record == nil || mp.Want == nil:
		return none, "the volume was never seen healthy at this mount point, so how it was mounted is not known"
	case wantStaged == nil:
		return none, "the volume has no staged mount to bind from"
	case mp.Inspect.NotEmpty:
		return none, "a mount would hide the files that lie there, on the node's disk"
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
func planOf(mp, staged healer.MountPoint, sub string, attr facts.Attr, was facts.Propagation) facts.PlacePlan {
	return facts.PlacePlan{
		Staged: staged.Stack[0], Sub: sub, Target: mp.Path, Attr: attr,
		Private: was.Shared == 0 && was.Master == 0, Shared: was.Shared != 0,
	}
}

func notHealthy(c healer.Condition) string {
	return fmt.Sprintf("the volume itself is not healthy (%s)", c.Reason)
}
