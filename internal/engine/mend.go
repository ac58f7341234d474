package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// mending is what one call has tried so far.
type mending struct {
	tried   map[string]bool
	refused map[string]healer.Refusal
	// stuck is true once a step left a stuck worker: it may still act, and no other
	// step acts beside it.
	stuck bool
}

// mend runs the least invasive step that may help, at all mount points at which it can
// run at once. more is false when no step is left.
func (e *Engine) mend(ctx context.Context, d healer.Diagnosis, lock *volumeLock, m *mending) (ran []healer.Outcome, more bool, err error) {
	for i, s := range d.Steps {
		rule := healer.RuleProvider
		if sick := sickSource(d, s); s.Refused == "" && sick != "" {
			rule, s.Refused = healer.RuleSickSource, sick
			d.Steps[i] = s
		}
		if s.Refused != "" && d.Needs(s) {
			m.refuse(s, rule, s.Refused)
		}
	}
	step, found := m.pick(d)
	if !found || m.stuck {
		return nil, false, nil
	}
	admitted, err := e.admitAll(ctx, d, m.batch(d, step), lock, m)
	if err != nil {
		return nil, false, err
	}
	ran = e.run(ctx, d.Case, admitted)
	for _, o := range ran {
		m.stuck = m.stuck || len(stuckBehind(o.Err)) > 0
	}
	return ran, true, nil
}

func stepKey(s healer.Step) string { return s.Name + "\x00" + s.MountPoint.Path }

func (m *mending) refuse(s healer.Step, rule healer.Rule, why string) {
	m.refused[stepKey(s)] = healer.Refusal{Step: s.Name, MountPoint: s.MountPoint.Path, Rule: rule, Why: why}
}

// pick takes the least invasive step that may run.
func (m *mending) pick(d healer.Diagnosis) (best healer.Step, found bool) {
	for _, s := range d.Steps {
		if m.mayRun(d, s) && (!found || s.Cost < best.Cost) {
			best, found = s, true
		}
	}
	return best, found
}

// mayRun reports whether a step heals an acute condition at its mount point, is not
// refused and was not tried there in this call.
func (m *mending) mayRun(d healer.Diagnosis, s healer.Step) bool {
	return s.Refused == "" && !m.tried[stepKey(s)] && d.Needs(s)
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
func (m *mending) batch(d healer.Diagnosis, s healer.Step) []healer.Step {
	all := []healer.Step{s}
	if s.RunBatch == nil {
		return all
	}
	for _, o := range d.Steps {
		if o.Name == s.Name && stepKey(o) != stepKey(s) && m.mayRun(d, o) {
			all = append(all, o)
		}
	}
	return all
}

// refusals returns the steps that would have helped and did not run, sorted.
func (m *mending) refusals(ran []healer.Outcome) []healer.Refusal {
	list := slices.SortedFunc(maps.Values(m.refused), func(a, b healer.Refusal) int {
		return cmp.Or(cmp.Compare(a.MountPoint, b.MountPoint), cmp.Compare(a.Step, b.Step))
	})
	return slices.DeleteFunc(list, func(r healer.Refusal) bool {
		return slices.ContainsFunc(ran, func(o healer.Outcome) bool { return o.Step == r.Step && o.MountPoint == r.MountPoint })
	})
}
