package mounts

import (
	"context"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// outdated gives the mounts at the bottom of a place, lowest first, that are of
// other filesystem instances than both the one on top and the staged one: a driver
// that finds its mount dead may mount on top of it. On top is one that works, or
// one that is to be replaced.
func outdated(c healer.Case, p healer.Place) (layers []host.Mount) {
	if len(p.Stack) < 2 || p.Inside != nil || c.Block {
		return nil
	}
	top := p.Stack[0]
	works := !top.Interim() && !top.RootDeleted && wrongVolume(c, p) == "" && !sickSuperblock(c, p)
	if top.Path != p.Path || !works && !outlived(c, p) {
		return nil
	}
	staged, _ := c.Staged()
	for _, m := range slices.Backward(p.Stack[1:]) {
		sb, seen := c.Superblocks[m.Dev]
		answers := seen && sb.Answer.Asked && !sb.Answer.Silent && sb.Answer.Errno == 0
		if m.Dev == top.Dev || m.Dev == staged.Dev() || m.FSType != top.FSType || answers {
			break
		}
		layers = append(layers, m)
	}
	return layers
}

// sickSuperblock is true when anything is wrong with the filesystem at a place
// that keeps a step from acting.
func sickSuperblock(c healer.Case, p healer.Place) bool {
	return slices.ContainsFunc(judgeSuperblock(c, p), func(cond healer.Condition) bool {
		return !slices.Contains(harmless, cond.Reason)
	})
}

// takeBeneath takes dead mounts away from beneath another one. Whether they are dead
// is seen by the worker: in this namespace nobody can ask a mount that is covered.
func (p Provider) takeBeneath(c healer.Case, place healer.Place, layers []host.Mount) healer.Step {
	s := healer.Step{
		Name: StepTakeBeneath, Place: place, Cost: healer.Replace, Heals: append(slices.Clone(deadReasons), healer.StackedMounts),
	}
	s.Source = place.Dev()
	if staged, found := c.Staged(); found && outlived(c, place) {
		s.Source = staged.Dev()
	}
	if c.Record == nil {
		s.Refused = "the volume was never seen healthy on this node"
		return s
	}
	s.Run = func(ctx context.Context, still func(context.Context) error) error {
		for _, dead := range layers {
			if err := p.host.TakeBeneath(ctx, place.Stack[0], dead, still); err != nil {
				return err
			}
		}
		return nil
	}
	return s
}
