package mounts

import (
	"context"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// gone reports whether the connection of a FUSE filesystem is gone: it never answers
// again.
func gone(sb facts.Superblock) bool {
	return facts.IsFUSE(sb.FSType) && sb.Answer.Asked && !sb.Answer.TimedOut && facts.MayBeCovered(sb.Answer.Errno)
}

// covers reports whether a dead mount can only be covered, and may be.
func (p Provider) covers(c healer.Case, mp healer.MountPoint) bool {
	return !p.host.CanReplace() && p.host.CanCover() && gone(c.Superblocks[mp.Dev()]) && (len(mp.Stack) == 1 || onlyDeadBeneath(c, mp))
}

// onlyDeadBeneath reports whether the top of a stack covers nothing but dead mounts of
// this volume.
func onlyDeadBeneath(c healer.Case, mp healer.MountPoint) bool {
	return len(mp.Stack) > 1 && c.AllReplaced(mp.Stack[1:])
}

// cover offers to put a clone of the healthy staged mount on top of a dead one.
func (p Provider) cover(c healer.Case, mp healer.MountPoint) healer.Step {
	staged, _ := c.Staged()
	s := healer.Step{
		Name: StepCover, MountPoint: mp, Cost: healer.Replace, Heals: []healer.Reason{healer.Disconnected}, Source: staged.Dev(),
	}
	plan, why := p.planReplace(c, mp, staged)
	if len(mp.Stack) >= healer.MaxCovered {
		why = fmt.Sprintf("%d dead mounts are stacked there already", len(mp.Stack))
	}
	if was := mp.Want; was != nil { // an interrupted step has made it private
		plan.Private = was.Propagation.Shared == 0 && was.Propagation.Master == 0
		plan.Shared = was.Propagation.Shared != 0
	}
	plan.Covers = mp.Stack[0]
	return offered(s, why, func(ctx context.Context, revalidate func(context.Context) error) error {
		return p.host.Cover(ctx, plan, revalidate)
	})
}
