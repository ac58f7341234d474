package watch

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

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
			v.sick.forgive(0, time.Now())
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

// nextHeal returns the volume whose heal begins now, of several the one that was healed in
// vain least often: else those that always fail would keep the others from being tried. It
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
		switch at := later(v.notBefore(), b.notBefore()); {
		case now.Before(at):
			ask = earlier(ask, at)
		case h.running < maxHeals && b.mayBegin() && (next == nil || v.sick.tries < next.sick.tries):
			next = v
		}
	}
	if next != nil && h.budget.TokensAt(now) < 1 {
		return nil, now.Add(time.Minute / healsPerMinute)
	}
	return next, ask
}

// diagnosed takes over what a check or a heal showed of a volume, and brings its next turn
// forward where there is something to do.
func (l *Loop) diagnosed(r result, now time.Time) {
	v, before := r.volume, r.volume.sick
	left, since := before.leftAlone(), before.brokeAt()
	how := refused // also where there is no answer
	switch {
	case healer.KindOf(r.err) == healer.KindNotFound:
		v.sick = before.gone(l.cfg.Interval, now)
	case r.err != nil && !r.heals:
		before.interrupted()
	case healer.KindOf(r.err) == healer.KindBusy, errors.Is(r.err, healer.ErrShuttingDown), healer.RuleOf(r.err) == healer.RuleMode:
		before.notBefore = v.due
	case r.err != nil:
		how = before.healed(before.found, r.report, r.err, l.cfg.Interval, now)
	case r.report.After.Healthy():
		v.sick, how = nil, succeeded
	case r.heals:
		found := before.found // before the heal
		v.sick = before.observe(r.report, v.key.driver, now)
		how = v.sick.healed(found, r.report, nil, l.cfg.Interval, now)
	default:
		v.sick = before.observe(r.report, v.key.driver, now)
		if v.sick.healable() {
			v.relapses.sick(now, l.cfg.Interval)
		}
	}
	if before != nil && how == succeeded {
		l.recovered(r, since, now)
	}
	if r.heals {
		l.heals.running--
		l.heals.backend(r.backend).end(now, how)
		v.healed = now
	}
	if l.heals.action == Heal && v.sick.healable() {
		l.planHeal(v)
	}
	if now := v.sick.leftAlone(); now != left && now != (healer.LeftAlone{}) && now.Reason != healer.DryRun {
		klog.InfoS("A sick volume is left alone until something changes", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"because", now.String(), keyError, oneLine(now.Detail), keyFound, oneLine(v.sick.found))
	}
}

// recovered takes over that a volume is well, as far as a step could heal it.
func (l *Loop) recovered(r result, since, now time.Time) {
	healed := r.heals && r.report.Helped()
	if healed {
		r.volume.relapses.healed = now
	}
	if l.cfg.Recovered != nil {
		l.cfg.Recovered(now.Sub(since), healed)
	}
}

// relapses counts how often in a row a volume that the loop healed fell sick again within
// an interval.
type relapses struct {
	count int
	// healed is when the loop last healed it; zero once it is sick again.
	healed time.Time
	// until is when the next heal may begin.
	until time.Time
}

// sick takes over that the volume could be healed now.
func (r *relapses) sick(now time.Time, interval time.Duration) {
	if r.healed.IsZero() {
		return
	}
	if r.count++; now.Sub(r.healed) >= interval {
		r.count = 0
	}
	r.healed = time.Time{}
	if r.count > freeRelapses {
		r.until = now.Add(retry.Transient.AfterWithJitter(r.count - freeRelapses))
	}
}

// notBefore is when a heal of a sick volume may begin.
func (v *volume) notBefore() time.Time { return later(v.sick.notBefore, v.relapses.until) }

// planHeal says when what is wrong with a volume that can be healed is confirmed.
func (l *Loop) planHeal(v *volume) {
	switch {
	case !v.sick.confirmed() && v.sick.seen == 0: // there was no answer
	case !v.sick.confirmed():
		v.due = earlier(v.due, v.sick.firstSeen.Add(confirmAfter))
	case l.cfg.DryRun:
		v.sick.left = healer.LeftAlone{Reason: healer.DryRun, Because: "nothing is changed"}
		klog.InfoS("The loop would heal a volume", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"steps", oneLine(strings.Join(v.sick.steps, ", ")))
	}
}
