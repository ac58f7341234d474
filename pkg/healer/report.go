package healer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/api"
)

// Verdict is the word that an answer begins with.
type Verdict string

// The verdicts. Healed means that a fresh observation after the steps found
// the volume healthy, never that a step ended without an error.
const (
	Healthy  Verdict = "healthy"
	Healed   Verdict = "healed"
	Abnormal Verdict = "abnormal"
	// NotJudged: nothing is known to be wrong, and not all of the volume could be judged.
	NotJudged Verdict = "not judged"
)

// Engine checks one volume, and heals it where that is safe, with a deadline of its own. A sick volume is a report; an
// error means that the question could not be answered.
type Engine interface {
	Heal(ctx context.Context, v Volume) (Report, error)
	Check(ctx context.Context, v Volume) (Report, error)
}

// Report is the answer to one request: the diagnosis before, the steps with
// their outcomes, the diagnosis after.
type Report struct {
	Volume Volume
	// Checked is true for a call that only checked.
	Checked bool
	// Driver is the CSI driver that the volume belongs to, as kubelet's files
	// name it.
	Driver string
	Before Diagnosis
	Steps  []Outcome
	After  Diagnosis
	// Refused lists the steps that would have helped and did not run.
	Refused []Refusal
	// Held says where the superblocks that are still sick are mounted.
	Held Held
	// Left says why the node's own loop leaves the volume alone after this. It is zero in
	// the answer to a call, which says nothing of the loop.
	Left LeftAlone
	// HealFollows is true for a check of the loop that is about to heal what it found. It is
	// false in the answer to a call.
	HealFollows bool
}

// Verdict returns what became of the volume.
func (r Report) Verdict() Verdict {
	switch {
	case r.After.Sick():
		return Abnormal
	case len(r.After.Case.Unjudged) > 0:
		return NotJudged
	case !r.Before.Healthy() && r.Helped():
		return Healed
	default:
		return Healthy // also when it came back by itself
	}
}

// Helped reports whether a step ended without an error.
func (r Report) Helped() bool {
	return slices.ContainsFunc(r.Steps, func(o Outcome) bool { return o.Err == nil })
}

// Replaced reports whether a step brought another filesystem instance to a mount point:
// files that were opened on the previous one stay dead.
func (r Report) Replaced() bool {
	now, works := r.After.Case.Working()
	return works && slices.ContainsFunc(r.Steps, func(o Outcome) bool {
		p, _ := r.Before.Case.MountPoint(o.MountPoint)
		return o.Err == nil && len(p.Stack) > 0 && !p.Stack[0].MayBeNode() && p.Stack[0].Dev != now.Dev
	})
}

// FailureText returns the error of the first step that failed with a class, with where;
// empty for none.
func (r Report) FailureText(c api.Class) string {
	for _, o := range r.Steps {
		if o.Err != nil && Classify(o.Err) == c {
			return fmt.Sprintf("%s at %s: %s", o.Step, QuoteName(o.MountPoint), o.Err)
		}
	}
	return ""
}

// Failure returns the class of what kept the steps from healing: of the errors the one
// that promises most. It is false where no step ran.
func (r Report) Failure() (api.Class, bool) {
	worst := map[api.Tier]int{api.Transient: 1, api.Retriable: 2, api.Terminal: 3}
	best, found := api.Class{Tier: api.Retriable, Type: api.TypeExecution}, len(r.Steps) > 0
	failed := false
	for _, o := range r.Steps {
		if o.Err == nil {
			continue
		}
		if c := Classify(o.Err); !failed || worst[c.Tier] < worst[best.Tier] {
			best, failed = c, true
		}
	}
	return best, found
}

// DriverAway reports whether nothing was tried, because the driver is not there: nobody
// listens at its socket, or its pod is not ready.
func (r Report) DriverAway() bool {
	if slices.ContainsFunc(r.Steps, func(o Outcome) bool { return !errors.Is(o.Err, ErrDriverAway) }) {
		return false
	}
	return len(r.Steps) > 0 || slices.ContainsFunc(r.Refused, func(f Refusal) bool { return f.Rule == RuleDriverGrace })
}

// Outcome is what one step did.
type Outcome struct {
	Step string
	// Provider is the one that offered the step.
	Provider   string
	MountPoint string
	Cost       Cost
	// Err is nil when the step ended without an error. That says nothing about
	// the volume; Report.After does.
	Err error
	// Note is what the step left different from before; empty for nothing.
	Note string
}

// Refusal is a step that did not run, and why.
type Refusal struct {
	Step       string
	MountPoint string
	Rule       Rule
	Why        string
}

// Diagnosis is what all providers together say of one observed case.
type Diagnosis struct {
	Case       Case
	Conditions []Condition
	Steps      []Step
	// Failures are the providers that could not examine the case. With a failure the
	// volume is not healthy.
	Failures []ProviderFailure
}

// ProviderFailure is one provider's error.
type ProviderFailure struct {
	Provider string
	Err      error
}

// Sick reports whether something is wrong, or a provider could not examine the case.
func (d Diagnosis) Sick() bool { return len(d.Conditions) > 0 || len(d.Failures) > 0 }

// Healthy reports whether nothing is wrong, and all of the volume could be judged.
func (d Diagnosis) Healthy() bool { return !d.Sick() && len(d.Case.Unjudged) == 0 }

// Offers returns the steps that may be tried now, the least invasive first: they heal a
// condition that is acute, and nothing that is known refuses them. The gate may refuse them
// still.
func (d Diagnosis) Offers() (steps []Step) {
	for _, s := range d.Steps {
		if s.Refused == "" && d.Needs(s) {
			steps = append(steps, s)
		}
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return int(a.Cost) - int(b.Cost) })
	return steps
}

// Needs reports whether a step heals a condition at its mount point that is acute. A
// driver may also act on what nothing here may, and stages a superblock anew at whichever
// mount point it was judged.
func (d Diagnosis) Needs(s Step) bool {
	byDriver := s.Cost == Delegate || s.Cost == Restage
	return slices.ContainsFunc(d.For(s), func(c Condition) bool { return c.Acute || byDriver })
}

// For returns the conditions that a step is for.
func (d Diagnosis) For(s Step) (found []Condition) {
	dev := s.MountPoint.Dev()
	for _, c := range d.Conditions {
		here := c.MountPoint == s.MountPoint.Path || s.Cost == Restage && !dev.Zero() && c.Superblock == dev
		if here && s.CanHeal(c.Reason) {
			found = append(found, c)
		}
	}
	return found
}

// Lasting reports whether what is wrong cannot pass by itself: the filesystem instance of
// a mount has ended, and a step may act on that; or a step that began left the staging mount
// point bare, where a pod could get the directory beneath. All else may be a moment of
// kubelet's, a driver's or a server's.
func (d Diagnosis) Lasting() bool {
	ended := func(c Condition) bool { return slices.Contains(EndedReasons(), c.Reason) }
	return slices.ContainsFunc(d.Conditions, func(c Condition) bool { return c.Acute && ended(c) }) ||
		slices.ContainsFunc(d.Offers(), func(s Step) bool {
			return s.Cost == Restage && (!s.MountPoint.Mounted() || slices.ContainsFunc(d.For(s), ended))
		})
}

// Held says where superblocks are mounted, as far as that was seen.
type Held struct {
	Mounts int
	By     []string
	// More is true where a container that could not be looked into may have others.
	More bool
}
