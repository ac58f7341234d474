package mounts

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// The steps' names.
const (
	StepRebind        = "rebind"
	StepTakeOff       = "take-off-duplicate"
	StepReplace       = "replace"
	StepCover         = "cover"
	StepUncover       = "uncover"
	StepReplaceInside = "replace-in-container"
)

// steps offers what may help at a place.
func (p Provider) steps(c healer.Case, place healer.Place, conditions []healer.Condition) []healer.Step {
	switch {
	case place.Role != healer.Published:
		return nil // staging is the driver's business
	case outlived(c, place) && p.covers(c, place):
		return []healer.Step{p.cover(c, place, conditions)}
	case outlived(c, place) && len(place.Stack) == 1:
		return []healer.Step{p.replace(c, place, conditions)}
	case outlived(c, place):
		return []healer.Step{p.uncover(c, place)}
	case len(place.Stack) == 0 || interrupted(c, place):
		return []healer.Step{p.rebind(c, place, conditions)}
	case leftBehind(place):
		return []healer.Step{p.takeOff(place)}
	}
	return nil
}

// rebind binds the healthy staged mount at the place, or finishes a rebind that
// was interrupted between its halves.
func (p Provider) rebind(c healer.Case, place healer.Place, conditions []healer.Condition) healer.Step {
	s := healer.Step{
		Name:  StepRebind,
		Place: place,
		Cost:  healer.Rebind,
		Heals: []healer.Reason{healer.NotMounted, healer.ReadOnlyFilesystem},
	}
	staged, _ := c.Staged()
	s.Source = staged.Dev()
	plan, why := planRebind(c, place, staged, conditions)
	if len(place.Stack) > 1 {
		plan.Covers = place.Stack[1]
	}
	s.Refused = why
	if why != "" {
		return s
	}
	s.Run = func(ctx context.Context, still func(context.Context) error) error {
		if len(place.Stack) > 0 {
			return p.host.Finish(ctx, plan, place.Stack[0], still)
		}
		return p.host.Rebind(ctx, plan, still)
	}
	return s
}

// keepsSteps is true for a condition that keeps a step from acting. What one
// container got instead of the volume is no reason to keep it from the others.
func keepsSteps(c healer.Condition) bool {
	return c.Disables() && c.Reason != healer.ContainerOnBareDirectory
}

// planRebind says what a rebind would do, or why there must be none.
func planRebind(c healer.Case, place, staged healer.Place, conditions []healer.Condition) (host.RebindPlan, string) {
	var none host.RebindPlan
	wantStaged := c.Record.Staged()
	switch {
	case c.Record == nil || place.Want == nil:
		return none, "the volume was never seen healthy at this place, so how it was mounted is not known"
	case wantStaged == nil:
		return none, "the volume has no staged mount to bind from"
	case len(staged.Stack) == 0:
		return none, "the staged mount to bind from is gone"
	case len(staged.Stack) > 1:
		return none, "several mounts stand on the staging path"
	case wantStaged.Path != staged.Path:
		return none, "the recorded staging path is another one"
	case place.Want.Dev != wantStaged.Dev:
		return none, "what was published there was not the staged filesystem"
	case host.IsNFS(staged.Stack[0].FSType) && place.Want.Source != staged.Stack[0].Source:
		return none, "the place is not known to have shown the directory of the server that is staged"
	case place.Want.Attr.Has(host.AttrIDMap) != staged.Stack[0].Attr.Has(host.AttrIDMap):
		return none, "the recorded mount had another ID mapping than the staged one"
	}
	for _, cond := range conditions {
		if cond.Place == place.Path && keepsSteps(cond) && cond.Reason != healer.NotMounted {
			return none, notHealthy(cond)
		}
	}
	if sick, found := disabled(c, staged, conditions); found {
		return none, notHealthy(sick)
	}
	if interrupted(c, place) && place.Dev() != staged.Dev() {
		return none, "the interim mount there is not of the staged filesystem"
	}
	sub, beneath := below(wantStaged.Root, place.Want.Root)
	if !beneath {
		return none, "the recorded directory does not lie below the staged one"
	}
	return host.RebindPlan{
		Staged:  staged.Stack[0],
		Sub:     sub,
		Target:  place.Path,
		Attr:    place.Want.Attr,
		Private: place.Want.Propagation.Shared == 0 && place.Want.Propagation.Master == 0,
		Shared:  place.Want.Propagation.Shared != 0,
	}, ""
}

// disabled finds what keeps a place from being used: a pod that waits for its mount
// is not helped by waiting until a merely degraded volume is well. Its superblock may
// have been judged at another place.
func disabled(c healer.Case, p healer.Place, conditions []healer.Condition) (healer.Condition, bool) {
	for _, cond := range slices.Concat(conditions, judgeSuperblock(c, p)) {
		if cond.Place == p.Path && keepsSteps(cond) {
			return cond, true
		}
	}
	return healer.Condition{}, false
}

func notHealthy(c healer.Condition) string {
	return fmt.Sprintf("the volume itself is not healthy (%s)", c.Reason)
}

// below gives what is left of root after base.
func below(base, root string) (string, bool) {
	if root == base {
		return "", true
	}
	return strings.CutPrefix(root, strings.TrimSuffix(base, "/")+"/")
}

// takeOff removes an interim mount of ours that came to stand on top of the
// driver's own.
func (p Provider) takeOff(place healer.Place) healer.Step {
	return healer.Step{
		Name:   StepTakeOff,
		Place:  place,
		Cost:   healer.Rebind,
		Heals:  []healer.Reason{healer.StackedMounts},
		Source: place.Dev(),
		Run: func(ctx context.Context, still func(context.Context) error) error {
			return p.host.TakeOff(ctx, place.Stack[0], still)
		},
	}
}
