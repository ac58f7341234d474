package mounts

import (
	"context"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// deadReasons are those of a mount whose filesystem instance has ended.
var deadReasons = healer.EndedReasons()

// unreachable refuses a stale NFS mount of which the kernel knows that its directory has
// no links any more: the path walk to it asks the server and fails, and a mount comes
// beneath another one only by a path walk. At any other stale mount statx fails.
const (
	unreachable = "the directory of the stale mount was deleted while it was in use, and no path walk reaches the mount any more"
	opStatx     = "statx"
)

// outlived reports whether the mount of a target is of a filesystem instance that has
// ended, while the driver has staged another one of the same type. What a driver makes
// of the staged filesystem, such as an overlay, is of another type. On NFS what was
// staged anew may share the instance of what is stale.
func outlived(c healer.Case, p healer.MountPoint) bool {
	staged, found := c.Staged()
	if !found || p.Role != healer.RoleTarget || len(staged.Stack) == 0 || len(p.Stack) == 0 {
		return false
	}
	if p.Dev() == staged.Dev() {
		return p.Stale() && !staged.Stale()
	}
	return c.Superblocks[p.Dev()].FSType == c.Superblocks[staged.Dev()].FSType && dead(c, p)
}

// dead reports whether the filesystem at a mount point has ended. NFS returns other
// errnos when its server is gone, which may come back.
func dead(c healer.Case, p healer.MountPoint) bool {
	if facts.IsNFS(c.Superblocks[p.Dev()].FSType) {
		return p.Stale()
	}
	return slices.ContainsFunc(judgeSuperblock(c, p), func(cond healer.Condition) bool {
		return slices.Contains(deadReasons, cond.Reason)
	})
}

// replace offers to put a clone of the healthy staged mount in place of a dead one, or on top of one
// that can only be covered.
func (p Provider) replace(c healer.Case, mp healer.MountPoint) healer.Step {
	staged, _ := c.Staged()
	s := healer.Step{
		Name: StepReplace, MountPoint: mp, Cost: healer.Replace, Heals: deadReasons, Source: staged.Dev(),
	}
	plan, why := p.planReplace(c, mp, staged)
	plan.Position, plan.Dead = facts.BeneathDead, mp.Stack[0]
	switch {
	case p.covers(c, mp):
		s.Name, s.Heals, plan.Position = StepCover, []healer.Reason{healer.Disconnected}, facts.OnDead
		if len(mp.Stack) >= healer.MaxCovered {
			why = fmt.Sprintf("%d dead mounts are stacked there already", len(mp.Stack))
		}
	case !p.host.CanReplace():
		why = healer.ReplaceNotSupported
	}
	return p.place(s, why, plan)
}

// planReplace returns what a replacement would do, or why there must be none. The dead
// mount itself shows how it was mounted.
func (p Provider) planReplace(c healer.Case, mp, staged healer.MountPoint) (facts.PlacePlan, string) {
	var none facts.PlacePlan
	was, now := mp.Stack[0], staged.Stack[0]
	if why := unfit(c, staged); why != "" {
		return none, why
	}
	switch {
	case mp.Stale() && mp.Own.Op != opStatx:
		return none, unreachable
	case was.RootDeleted && !facts.IsType(was.FSType, facts.MayHang):
		return none, "the directory that the mount showed was deleted"
	case !publishedAsStaged(c, mp):
		return none, "what was published there is not known to be the staged filesystem"
	case !now.OnDevice() && was.Source != now.Source:
		return none, "the dead mount had another source than the staged one"
	case facts.IsNFS(was.FSType) && mp.Want != nil && mp.Want.Source != was.Source && mp.Want.Source != "":
		return none, "the mount point shows another directory of the server than it did"
	case was.SuperReadOnly && !now.SuperReadOnly:
		return none, "the dead filesystem was read-only, and the staged one is not"
	case was.Attr.Has(facts.AttrIDMap) != now.Attr.Has(facts.AttrIDMap):
		return none, "the dead mount had another ID mapping than the staged one"
	}
	for _, cond := range c.Found {
		if cond.MountPoint == mp.Path && cond.Reason == healer.WrongVolumeMounted {
			return none, string(cond.Reason) + ": " + cond.Message
		}
	}
	if was.Placeholder() { // an interrupted step of ours, whose filesystem ended too
		if mp.Want == nil {
			return none, "an interrupted replacement is there, and how the mount point was mounted is not known"
		}
		was.Attr, was.Propagation = mp.Want.Attr, mp.Want.Propagation
	}
	if mp.Want != nil && p.covers(c, mp) { // an interrupted step has made it private
		was.Propagation = mp.Want.Propagation
	}
	sub, beneath := facts.Below(now.Root, was.Root)
	if !beneath {
		return none, "the directory of the dead mount does not lie below the staged one"
	}
	plan := planOf(mp, staged, sub, was.Attr, was.Propagation)
	plan.Ended = c.Superblocks[was.Dev].Shutdown
	return plan, ""
}

// publishedAsStaged reports whether the driver publishes what it stages, and nothing
// else made of it: by the record of the mount point, or of the other targets where this
// one has none.
func publishedAsStaged(c healer.Case, mp healer.MountPoint) bool {
	staged := c.Record.Staged()
	if staged == nil {
		return false
	}
	if mp.Want != nil {
		return mp.Want.Dev == staged.Dev
	}
	targets := slices.DeleteFunc(slices.Clone(c.Record.MountPoints), func(r healer.MountPointRecord) bool { return r.Role != healer.RoleTarget })
	return len(targets) > 0 && !slices.ContainsFunc(targets, func(r healer.MountPointRecord) bool { return r.Dev != staged.Dev })
}

// unfit returns why the staged mount must not replace another one.
func unfit(c healer.Case, staged healer.MountPoint) string {
	want := c.Record.Staged()
	switch {
	case c.Record == nil:
		return "the volume was never seen healthy on this node"
	case len(staged.Stack) == 0:
		return "the staged mount is gone"
	case slices.ContainsFunc(staged.Stack[1:], func(m facts.Mount) bool { return m.Dev == staged.Stack[0].Dev }):
		return "several mounts are stacked on the staging path" // of the same: it is not clear which one counts
	case staged.Stack[0].Placeholder():
		return "the staged mount is read-only"
	case want != nil && want.Path != staged.Path:
		return "the recorded staging path is another one"
	case want != nil && want.Root != staged.Stack[0].Root:
		return "the staged mount shows another directory than the recorded one"
	}
	if sick, found := c.Unusable(staged); found {
		return notHealthy(sick)
	}
	return ""
}

// unmountDeadTop offers to unmount a dead mount on top of a live one of the volume, or of
// the clone that an interrupted replacement put beneath it.
func (p Provider) unmountDeadTop(c healer.Case, mp healer.MountPoint) healer.Step {
	staged, _ := c.Staged()
	top, below := mp.Stack[0], mp.Stack[1]
	s := healer.Step{
		Name: StepUnmountDeadTop, MountPoint: mp, Cost: healer.Replace, Heals: append(slices.Clone(deadReasons), healer.StackedMounts), Source: staged.Dev(),
	}
	why := ""
	switch {
	case below.Dev == top.Dev && below.Root == top.Root:
		// Dead as well: once it is alone it is replaced.
	case below.Dev != staged.Dev():
		why = "what the dead mount hides is not the staged filesystem"
	case below.Root != top.Root:
		why = "what the dead mount hides shows another directory"
	}
	return offered(s, why, func(ctx context.Context, revalidate func(context.Context) error) error {
		return p.host.UnmountTop(ctx, facts.UnmountPlan{Top: top, Ended: c.Superblocks[top.Dev].Shutdown, Below: below.Ref()}, revalidate)
	})
}

// covers reports whether a dead mount can only be covered, and may be: the connection of a FUSE
// filesystem is gone, and it never answers again.
func (p Provider) covers(c healer.Case, mp healer.MountPoint) bool {
	sb := c.Superblocks[mp.Dev()]
	gone := facts.IsFUSE(sb.FSType) && sb.Answer.Asked && !sb.Answer.TimedOut && facts.MayBeCovered(sb.Answer.Errno)
	return gone && !p.host.CanReplace() && p.host.CanCover() && (len(mp.Stack) == 1 || onlyDeadBeneath(c, mp))
}

// onlyDeadBeneath reports whether the top of a stack covers nothing but dead mounts of
// this volume.
func onlyDeadBeneath(c healer.Case, mp healer.MountPoint) bool {
	return len(mp.Stack) > 1 && c.AllReplaced(mp.Stack[1:])
}
