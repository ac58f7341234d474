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
	// stuck is true once a step left a stuck worker: it may still act, and no other
	// step acts beside it.
	stuck bool
}

func newTries() *tries {
	return &tries{tried: map[string]bool{}, refused: map[string]healer.Refusal{}}
}

// next returns the least invasive step that may help: at one mount point, or, where the step can
// run at several at once, at each of those. None when no step is left. It notes the steps that
// would help and are refused.
func (t *tries) next(d healer.Diagnosis) []healer.Step {
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
	best, found := t.pick(d)
	if !found || t.stuck {
		return nil
	}
	return t.batch(d, best)
}

// done notes whether a worker of one of the steps that ran is stuck, and may still act.
func (t *tries) done(outcomes []healer.Outcome) {
	for _, o := range outcomes {
		t.stuck = t.stuck || len(stuckBehind(o.Err)) > 0
	}
}

func stepKey(s healer.Step) string { return s.Name + "\x00" + s.MountPoint.Path }

func (t *tries) refuse(s healer.Step, rule healer.Rule, why string) {
	t.refused[stepKey(s)] = healer.Refusal{Step: s.Name, MountPoint: s.MountPoint.Path, Rule: rule, Why: why}
}

// pick takes the least invasive step that may run.
func (t *tries) pick(d healer.Diagnosis) (best healer.Step, found bool) {
	for _, s := range d.Steps {
		if t.mayRun(d, s) && (!found || s.Cost < best.Cost) {
			best, found = s, true
		}
	}
	return best, found
}

// mayRun reports whether a step heals an acute condition at its mount point, is not
// refused and was not tried there in this call.
func (t *tries) mayRun(d healer.Diagnosis, s healer.Step) bool {
	return s.Refused == "" && !t.tried[stepKey(s)] && d.Needs(s)
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

// batch returns a step and, if it can run at several mount points at once, all others
// of its name that may run.
func (t *tries) batch(d healer.Diagnosis, s healer.Step) []healer.Step {
	all := []healer.Step{s}
	if s.RunBatch == nil {
		return all
	}
	for _, o := range d.Steps {
		if o.Name == s.Name && stepKey(o) != stepKey(s) && t.mayRun(d, o) {
			all = append(all, o)
		}
	}
	return all
}

// refusals returns the steps that would have helped and did not run, sorted.
func (t *tries) refusals(ran []healer.Outcome) []healer.Refusal {
	list := slices.SortedFunc(maps.Values(t.refused), func(a, b healer.Refusal) int {
		return cmp.Or(cmp.Compare(a.MountPoint, b.MountPoint), cmp.Compare(a.Step, b.Step))
	})
	return slices.DeleteFunc(list, func(r healer.Refusal) bool {
		return slices.ContainsFunc(ran, func(o healer.Outcome) bool { return o.Step == r.Step && o.MountPoint == r.MountPoint })
	})
}
