package watch

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/retry"
)

const (
	// healsPerMinute bounds the heals that begin on this node; healsBurst may begin at
	// once.
	healsPerMinute = 120
	healsBurst     = 10
	// maxHeals bounds those that run at once.
	maxHeals = 4
	// actionGap is how soon a change of what the loop may do is noticed.
	actionGap = 10 * time.Second
)

// Action is what the loop does.
type Action string

// The actions, by the values of --loop.
const (
	Off     Action = "off"
	Observe Action = "observe"
	// Heal also heals what was found to be wrong.
	Heal Action = "heal"
)

// healing is what the loop needs to act on sick volumes.
type healing struct {
	action  Action
	running int
	budget  *rate.Limiter
	// backends has those of which many volumes could be healed, and those with heals that
	// run.
	backends map[string]*backend
}

func newHealing() healing {
	return healing{action: Off, budget: rate.NewLimiter(rate.Every(time.Minute/healsPerMinute), healsBurst), backends: map[string]*backend{}}
}

// decide takes over what the loop may do now. With more than before, what was left alone
// is tried again.
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

// wants reports whether a volume is to be healed, as soon as its heal may begin.
func (l *Loop) wants(v *volume) bool {
	return l.heals.action == Heal && !l.cfg.DryRun && v.sick.healable() && v.sick.confirmed()
}

// nextHeal returns the volume whose heal begins now, of several the one that was tried
// least often: else those that always fail would keep the others from being tried. It
// is nil for none; ask is when to ask again, unless a check or a heal ends before.
func (l *Loop) nextHeal(now time.Time) (next *volume, ask time.Time) {
	h := &l.heals
	ask = now.Add(actionGap)
	h.count(l.known.all)
	for _, v := range l.known.all {
		if v.running || !l.wants(v) {
			continue
		}
		b := h.backend(v.sick.backend)
		switch at := later(v.notBefore, b.notBefore()); {
		case now.Before(at):
			ask = earlier(ask, at)
		case h.running < maxHeals && b.mayBegin() && (next == nil || v.tries < next.tries):
			next = v
		}
	}
	if next != nil && h.budget.TokensAt(now) < 1 {
		return nil, now.Add(time.Minute / healsPerMinute)
	}
	return next, ask
}

// diagnosed takes over what a check or a heal showed of a volume.
func (l *Loop) diagnosed(r result, now time.Time) {
	v, before := r.volume, r.volume.sick
	left, since := before.leftAlone(), before.brokeAt()
	recovered := r.err == nil && r.report.After.Healthy()
	switch {
	case healer.KindOf(r.err) == healer.KindNotFound:
		v.sick = before.gone(l.cfg.Interval, now)
	case r.err != nil && !r.heals:
		before.interrupted()
	case r.err != nil:
	case recovered:
		v.sick = nil
	default:
		v.sick = before.observe(r.report, v.key.driver, now)
		if v.sick.broken.Equal(now) && (before == nil || v.helped) && now.Sub(v.healed) >= l.cfg.Interval {
			v.backoff = backoff{} // it was well, and for long enough
		}
	}
	if r.heals {
		l.heals.running--
		how := l.healed(r, now)
		l.heals.backend(r.backend).end(now, how)
		v.healed, recovered = now, how == succeeded
	}
	if before != nil && recovered && l.cfg.Recovered != nil {
		l.cfg.Recovered(now.Sub(since), r.heals && r.report.Helped())
	}
	if l.heals.action == Heal && v.sick.healable() {
		l.planHeal(v)
	}
	if now := v.sick.leftAlone(); now != left && now != (healer.LeftAlone{}) && now.Reason != healer.DryRun {
		klog.InfoS("A sick volume is left alone until something changes", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"because", now.String(), keyError, oneLine(now.Detail), keyFound, oneLine(v.sick.found))
	}
}

// healed returns what became of a heal, and says when the next may begin.
func (l *Loop) healed(r result, now time.Time) outcome {
	v := r.volume
	class, ran := r.report.Failure()
	switch {
	case healer.KindOf(r.err) == healer.KindNotFound:
		return refused
	case healer.KindOf(r.err) == healer.KindBusy, errors.Is(r.err, healer.ErrShuttingDown), healer.RuleOf(r.err) == healer.RuleMode:
		v.notBefore = v.due
		return refused
	}
	v.tries++
	v.sinceChange++
	v.helped = false
	switch {
	case r.err != nil:
		class = healer.Classify("", "", r.err)
	case v.sick == nil, v.sick.found != r.found && len(v.sick.steps) == 0 && r.report.Helped(): // what is left is no matter of a step
		v.helped, v.notBefore = true, now.Add(retry.Transient.AfterWithJitter(v.sinceChange))
		v.retried = later(v.retried, v.notBefore) // that it breaks again is no change that may help
		return succeeded
	case !ran:
		v.notBefore = now.Add(retry.From(l.cfg.Interval).AfterWithJitter(v.sinceChange))
		return refused
	}
	after, again := retry.After(class, v.sinceChange)
	if !again {
		after = retry.Transient.After(v.sinceChange) // for what is wrong if it is something else
	}
	v.notBefore = now.Add(retry.WithJitter(after))
	if again || v.sick.found != r.found && len(v.sick.steps) > 0 {
		return failed
	}
	v.sick.left = healer.LeftAlone{Reason: healer.TerminalError, Because: "another try cannot help", Detail: r.report.FailureText(class)}
	if class.Type == api.TypePermission {
		v.sick.left.Reason, v.sick.left.Because = healer.PermissionMissing, "a permission is missing"
	}
	if v.sick.left.Detail == "" && r.err != nil {
		v.sick.left.Detail = r.err.Error()
	}
	return failed
}

// planHeal says when what is wrong with a volume that can be healed is confirmed.
func (l *Loop) planHeal(v *volume) {
	switch {
	case !v.sick.confirmed() && v.sick.firstSeen.IsZero(): // the next check begins a row
	case !v.sick.confirmed():
		v.due = earlier(v.due, v.sick.firstSeen.Add(confirmAfter))
	case l.cfg.DryRun:
		v.sick.left = healer.LeftAlone{Reason: healer.DryRun, Because: "nothing is changed"}
		klog.InfoS("The loop would heal a volume", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"steps", oneLine(strings.Join(v.sick.steps, ", ")))
	}
}
