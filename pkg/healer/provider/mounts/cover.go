package mounts

import (
	"context"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// Where the kernel cannot put a mount beneath another one, a clone of the staged
// mount goes on top of a dead one: of a FUSE whose connection is gone, and of no
// other, because nothing that it answers later could be wrong.

// maxCovered bounds the dead mounts at a place: a driver takes off one at a time.
const maxCovered = 4

// gone is true for a filesystem that never answers again, whatever its daemon does.
func gone(sb host.Superblock) bool {
	return healer.IsFUSE(sb.FSType) && sb.Answer.Asked && !sb.Answer.Silent && sb.Answer.Errno == syscall.ENOTCONN
}

// goneInside is the same for what a container has.
func goneInside(in *healer.Inside) bool {
	return healer.IsFUSE(in.Mount.FSType) && in.Sight.Errno == syscall.ENOTCONN
}

// covers is true where a dead mount can only be covered, and may be.
func (p Provider) covers(c healer.Case, place healer.Place) bool {
	return !p.host.CanReplace() && p.host.CanCover() && gone(c.Superblocks[place.Dev()]) && (len(place.Stack) == 1 || onlyDeadBeneath(c, place))
}

// onlyDeadBeneath is true when all that the top of a stack hides are dead mounts of this
// volume, made private to be covered.
func onlyDeadBeneath(c healer.Case, place healer.Place) bool {
	return len(place.Stack) > 1 && allDead(c, place.Stack[1:])
}

func allDead(c healer.Case, mounts []host.Mount) bool {
	return !slices.ContainsFunc(mounts, func(m host.Mount) bool {
		return !healer.IsFUSE(m.FSType) || m.Propagation != (host.Propagation{}) || !c.Replaced(m.Dev)
	})
}

// judgePlace leaves out that mounts are stacked where this provider did it.
func (p Provider) judgePlace(c healer.Case, place healer.Place) []healer.Condition {
	found := judgePlace(c, place)
	if p.host.CanReplace() || !onlyDeadBeneath(c, place) {
		return found
	}
	return slices.DeleteFunc(found, func(cond healer.Condition) bool { return cond.Reason == healer.StackedMounts })
}

// cover puts a clone of the healthy staged mount on top of a dead one.
func (p Provider) cover(c healer.Case, place healer.Place, conditions []healer.Condition) healer.Step {
	staged, _ := c.Staged()
	s := healer.Step{
		Name: StepCover, Place: place, Cost: healer.Replace, Heals: []healer.Reason{healer.Disconnected}, Source: staged.Dev(),
	}
	plan, why := p.planReplace(c, place, staged, conditions)
	if len(place.Stack) >= maxCovered {
		why = "as many dead mounts as a driver is left to take off stand there already; delete the pod, so that kubelet publishes the volume anew"
	}
	if s.Refused = why; why != "" {
		return s
	}
	if was := place.Want; was != nil { // an interrupted step has made it private
		plan.Private = was.Propagation.Shared == 0 && was.Propagation.Master == 0
		plan.Shared = was.Propagation.Shared != 0
	}
	plan.Covers = place.Stack[0]
	s.Run = func(ctx context.Context, still func(context.Context) error) error {
		return p.host.Cover(ctx, plan, still)
	}
	return s
}
