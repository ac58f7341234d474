package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// tries is what one call has tried so far.
type tries struct {
	tried   map[string]bool
	refused map[string]healer.Refusal
}

// next returns the least invasive step that may help: at one mount point, or, where the step can
// run at several at once, at each of those. None when no step is left. It notes the steps that
// would help and are refused.
func (t tries) next(d healer.Diagnosis) []healer.Step {
	for i, s := range d.Steps {
		rule := healer.RuleProvider
		if sick := sickSource(d, s); s.Refused == "" && sick != "" {
			rule, s.Refused = healer.RuleSickSource, sick
			d.Steps[i] = s
		}
		if s.Refused != "" && d.Needs(s) {
			t.refuse(s, rule, s.Refused)
		}
	}
	left := slices.DeleteFunc(d.Offers(), func(s healer.Step) bool { return t.tried[stepKey(s)] })
	if len(left) == 0 {
		return nil
	}
	best := left[0]
	return append(left[:1], slices.DeleteFunc(left[1:], func(s healer.Step) bool {
		return best.RunBatch == nil || s.Name != best.Name || stepKey(s) == stepKey(best)
	})...)
}

func stepKey(s healer.Step) string { return s.Name + "\x00" + s.MountPoint.Path }

func (t tries) refuse(s healer.Step, rule healer.Rule, why string) {
	t.refused[stepKey(s)] = healer.Refusal{Step: s.Name, MountPoint: s.MountPoint.Path, Rule: rule, Why: why}
}

// sickSource says what a provider found wrong with the filesystem that a step would
// bring, unless the step heals that; empty if nothing is. Every provider counts: one may
// know of a backend that is lost while the mount still answers.
func sickSource(d healer.Diagnosis, s healer.Step) string {
	if s.Source.Zero() {
		return ""
	}
	for _, cond := range d.Conditions {
		if s.CanHeal(cond.Reason) || !cond.Disables() {
			continue
		}
		for _, p := range d.Case.MountPoints {
			ofSource := cond.Superblock == s.Source && !d.Case.AnswersAlone(p)
			if p.Dev() == s.Source && p.Mounted() && (ofSource || p.Role == healer.RoleStaging && d.Case.DisablesAt(cond, p)) {
				return fmt.Sprintf("the filesystem that it brings is sick: %s (%s)", cond.Reason, cond.Message)
			}
		}
	}
	return ""
}

// refusals returns the steps that would have helped and did not run, sorted.
func (t tries) refusals(ran []healer.Outcome) []healer.Refusal {
	list := slices.SortedFunc(maps.Values(t.refused), func(a, b healer.Refusal) int {
		return cmp.Or(cmp.Compare(a.MountPoint, b.MountPoint), cmp.Compare(a.Step, b.Step))
	})
	return slices.DeleteFunc(list, func(r healer.Refusal) bool {
		return slices.ContainsFunc(ran, func(o healer.Outcome) bool { return o.Step == r.Step && o.MountPoint == r.MountPoint })
	})
}
