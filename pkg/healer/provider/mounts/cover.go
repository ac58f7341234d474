package mounts

import (
	"context"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// gone is true for a filesystem that never answers again, whatever its daemon does.
func gone(sb host.Superblock) bool {
	return healer.IsFUSE(sb.FSType) && sb.Answer.Asked && !sb.Answer.Silent && sb.Answer.Errno == syscall.ENOTCONN
}

// covers is true where a dead mount can only be covered, and may be.
func (p Provider) covers(c healer.Case, mountPoint healer.MountPoint) bool {
	return !p.host.CanReplace() && p.host.CanCover() && gone(c.Superblocks[mountPoint.Dev()]) && (len(mountPoint.Stack) == 1 || onlyDeadBeneath(c, mountPoint))
}

// onlyDeadBeneath is true when all that the top of a stack hides are dead mounts of this
// volume, made private to be covered.
func onlyDeadBeneath(c healer.Case, mountPoint healer.MountPoint) bool {
	return len(mountPoint.Stack) > 1 && c.AllReplaced(mountPoint.Stack[1:])
}

// judgeMountPoint leaves out that mounts are stacked where this provider did it.
func (p Provider) judgeMountPoint(c healer.Case, mountPoint healer.MountPoint) []healer.Condition {
	found := judgeMountPoint(c, mountPoint)
	if p.host.CanReplace() || !onlyDeadBeneath(c, mountPoint) {
		return found
	}
	return slices.DeleteFunc(found, func(cond healer.Condition) bool { return cond.Reason == healer.StackedMounts })
}

// cover puts a clone of the healthy staged mount on top of a dead one.
func (p Provider) cover(c healer.Case, mountPoint healer.MountPoint) healer.Step {
	staged, _ := c.Staged()
	s := healer.Step{
		Name: StepCover, MountPoint: mountPoint, Cost: healer.Replace, Heals: []healer.Reason{healer.Disconnected}, Source: staged.Dev(),
	}
	plan, why := p.planReplace(c, mountPoint, staged)
	if len(mountPoint.Stack) >= healer.MaxCovered {
		why = "as many dead mounts as a driver is left to take off stand there already; delete the pod, so that kubelet publishes the volume anew"
	}
	if s.Refused = why; why != "" {
		return s
	}
	if was := mountPoint.Want; was != nil { // an interrupted step has made it private
		plan.Private = was.Propagation.Shared == 0 && was.Propagation.Master == 0
		plan.Shared = was.Propagation.Shared != 0
	}
	plan.Covers = mountPoint.Stack[0]
	s.Run = func(ctx context.Context, revalidate func(context.Context) error) error {
		return p.host.Cover(ctx, plan, revalidate)
	}
	return s
}
