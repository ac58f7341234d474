package loop

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// actionGap is how soon a change of what the loop may do is noticed.
const actionGap = 10 * time.Second

// Action is what the loop does.
type Action string

// The actions, by the values of --loop.
const (
	Off     Action = "off"
	Observe Action = "observe"
	// Heal also heals the volumes that a check found abnormal.
	Heal Action = "heal"
)

// decide takes over what the loop may do now. When it may heal, sick volumes that were left alone are
// tried again.
func (l *Loop) decide() {
	now := l.cfg.Action()
	if now == l.heals.action {
		return
	}
	klog.InfoS("What the loop does changed", "loop", string(now))
	was := l.heals.action
	l.heals.action = now
	if was == Off {
		l.discovered = false // those that came meanwhile are spread, too
	}
	for _, v := range l.known.all {
		if now == Heal {
			v.retry(0, time.Now())
		}
		if was == Off { // all of them are overdue, on all nodes
			v.expected = time.Now()
			v.due = v.expected.Add(rand.N(l.cfg.Interval)) //nolint:gosec // a schedule is no secret
		}
	}
}

// diagnosed takes over what a check or a heal showed of a volume.
func (l *Loop) diagnosed(r result, now time.Time) {
	v, was, wasSick := r.volume, r.volume.sick, r.volume.isSick()
	recovered := r.err == nil && !r.report.After.Sick() && !notJudged(r)
	switch {
	case healer.KindOf(r.err) == healer.KindNotFound, notJudged(r):
		v.sick.gone(l.cfg.Interval, now)
	case r.err != nil && !r.heals:
		v.sick.interrupted()
	case r.err != nil:
	case recovered:
		v.sick = sickness{}
	default:
		v.sick.observe(r.report, v.key.driver, now)
		if !r.heals && v.failures > 0 && !v.untold && inputsChanged(r.report.After) && v.retry(0, now) {
			v.due = earlier(v.due, now.Add(changeDelay))
			l.heals.retry(v.sick.backend)
		}
		if v.sick.broken.Equal(now) && (!wasSick || v.failures == 0) && now.Sub(v.healed) >= l.cfg.Interval {
			v.backoff = backoff{} // nothing was to be healed, and for an interval
		}
	}
	if r.heals {
		recovered = l.healed(r, now)
	}
	if wasSick && recovered && l.cfg.Recovered != nil {
		l.cfg.Recovered(now.Sub(cmp.Or(was.broken, was.since)), r.heals && r.report.Helped())
	}
	// The check that may confirm what is wrong; without firstSeen the next one begins a row.
	if l.heals.action == Heal && v.sick.healable() && !v.sick.confirmed() && !v.sick.firstSeen.IsZero() {
		v.due = earlier(v.due, v.sick.firstSeen.Add(confirmAfter))
	}
	restages := func(s healer.Step) bool { return s.Cost == healer.Restage }
	if v.isSick() && v.failures > 0 && slices.ContainsFunc(r.report.After.Steps, restages) {
		v.due = earlier(v.due, now.Add(waitGap))
	}
	if now := v.sick.left; now != was.left && now != (healer.LeftAlone{}) {
		klog.InfoS("A sick volume is left alone until something changes", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"because", now.String(), keyError, oneLine(now.Detail), keyFound, oneLine(v.sick.found))
	}
}

// inputsChanged reports whether a step that failed would be another one now.
func inputsChanged(d healer.Diagnosis) bool {
	return slices.ContainsFunc(d.Steps, func(s healer.Step) bool { return s.InputsChanged })
}

// notJudged reports whether nothing is known to be wrong with a volume, and not all of it could
// be judged: what was found earlier may still be so, unless a step has just helped.
func notJudged(r result) bool {
	return r.err == nil && r.report.Verdict() == healer.NotJudged && !r.report.Helped()
}

// waitGap is how soon a volume is checked again whose driver did not stage it anew, or must not be
// called now: no event tells of what that waits for, as the end of a process or a changed Secret.
const waitGap = time.Minute

// healed says when the next heal of a volume may begin after one that ended, and reports
// whether that helped.
func (l *Loop) healed(r result, now time.Time) (helped bool) {
	v, b := r.volume, l.heals.backend(r.backend)
	l.heals.running--
	b.running--
	v.healed, v.tried = now, now
	class, ran := r.report.Failure()
	switch {
	case healer.KindOf(r.err) == healer.KindNotFound, notJudged(r):
		return false
	case healer.KindOf(r.err) == healer.KindBusy, errors.Is(r.err, healer.ErrShuttingDown), healer.RuleOf(r.err) == healer.RuleMode:
		v.notBefore = v.due
		return false
	case r.err == nil && v.isSick() && r.report.DriverAway():
		v.away++
		b.helps, b.away = false, b.away+1
		v.notBefore, b.until = now.Add(retry.Transient.AfterWithJitter(v.away)), now.Add(retry.Transient.AfterWithJitter(b.away))
		return false
	}
	v.away, b.away = 0, 0
	v.tries++
	v.failures++
	v.untold = inputsChanged(r.report.Before) && inputsChanged(r.report.After)
	switch {
	case r.err != nil:
		class = healer.Classify(r.err)
	case !v.isSick(), v.sick.found != r.found && len(v.sick.steps) == 0 && r.report.Helped(): // what is left is no matter of a step
		v.helped++
		v.tried = time.Time{}
		v.failures, v.notBefore = 0, now.Add(retry.Transient.AfterWithJitter(v.helped))
		v.retried = later(v.retried, v.notBefore) // that it breaks again is no change that may help
		b.helps, b.failures, b.until = true, 0, time.Time{}
		return true
	case !ran: // no step ran, which says nothing of the backend
		v.notBefore = now.Add(retry.From(l.cfg.Interval).AfterWithJitter(v.failures))
		return false
	}
	b.helps, b.failures = false, b.failures+1
	b.until = now.Add(retry.From(trialBackoff).AfterWithJitter(b.failures))
	after, again := retry.After(class, v.failures)
	passes := func(f healer.Refusal) bool {
		return slices.Contains([]healer.Rule{healer.RuleAPI, healer.RuleDrain, healer.RuleDriverGrace, healer.RuleSelfRepair}, f.Rule)
	}
	if !again && slices.ContainsFunc(r.report.Refused, passes) { // the step that was refused may help
		after, again = retry.After(api.Class{Tier: api.Retriable, Type: api.TypeExecution}, v.failures)
	}
	if !again {
		after = retry.Transient.After(v.failures) // for what is wrong if it is something else
	}
	v.notBefore = now.Add(retry.WithJitter(after))
	if again || v.sick.found != r.found && len(v.sick.steps) > 0 {
		return false
	}
	v.sick.left = healer.LeftAlone{Reason: healer.TerminalError, Because: "another try cannot help", Detail: r.report.FailureText(class)}
	if class.Type == api.TypePermission {
		v.sick.left.Reason, v.sick.left.Because = healer.PermissionMissing, "a permission is missing"
	}
	if v.sick.left.Detail == "" && r.err != nil {
		v.sick.left.Detail = r.err.Error()
	}
	return false
}
