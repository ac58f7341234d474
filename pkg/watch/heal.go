package watch

import (
	"errors"
	"math/rand/v2"
	"slices"
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
	action   Action
	running  int
	budget   *rate.Limiter
	breakers map[string]*breaker
	// sick counts the volumes of each backend that could be healed.
	sick map[string]int
}

func newHealing() healing {
	return healing{action: Off, budget: rate.NewLimiter(rate.Every(time.Minute/healsPerMinute), healsBurst), breakers: map[string]*breaker{}, sick: map[string]int{}}
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
	l.count()
}

// wants reports whether a volume is to be healed, not only checked, at its next turn.
func (l *Loop) wants(v *volume) bool {
	return l.heals.action == Heal && !l.cfg.DryRun && v.sick.healable() && v.sick.confirmed()
}

// heldBack returns when to ask again whether the heal of a volume may begin; zero: it may
// now, and counts.
func (l *Loop) heldBack(v *volume, now time.Time) (until time.Time) {
	h := &l.heals
	if at := v.notBefore(); now.Before(at) {
		return at
	}
	soon := now.Add(time.Second)
	if ask, may := h.breaker(v.sick.backend).mayBegin(now, h.sick[v.sick.backend]); !may {
		return later(soon, ask)
	}
	if h.running >= maxHeals || h.budget.TokensAt(now) < 1 || l.others(v, now) || !h.budget.AllowN(now, 1) {
		return soon
	}
	return time.Time{}
}

// others reports whether the heal of another volume of the same backend comes first, where
// they are tried one after the other: one that failed less often. Else those that always
// fail would keep the others from being tried.
func (l *Loop) others(v *volume, now time.Time) bool {
	if !l.heals.breaker(v.sick.backend).open(l.heals.sick[v.sick.backend]) {
		return false
	}
	return slices.ContainsFunc(l.known.all, func(o *volume) bool {
		return o.sick != nil && o.sick.backend == v.sick.backend && o.sick.tries < v.sick.tries &&
			!o.running && l.wants(o) && !now.Before(o.notBefore())
	})
}

// turn says what a volume's turn is: nothing yet, because its heal is held back and its
// next check is not due; a heal; or a check, also as something happened to it.
func (l *Loop) turn(v *volume, now time.Time) (begins, heals bool) {
	if !l.wants(v) {
		return true, false
	}
	until := l.heldBack(v, now)
	nextCheck := v.started.Add(l.cfg.Interval)
	if v.urgent { // it is asked for its heal more often than it may be checked
		nextCheck = earlier(nextCheck, v.hurried.Add(changeGap))
	}
	switch {
	case until.IsZero():
		return true, true
	case now.Before(nextCheck):
		v.due = earlier(until, nextCheck)
		return false, false
	}
	return true, false
}

func (h *healing) breaker(backend string) *breaker {
	b := h.breakers[backend]
	if b == nil {
		b = &breaker{}
		h.breakers[backend] = b
	}
	return b
}

// count takes over which volumes could be healed, and forgets the breakers that hold nothing
// back: how single volumes fared says nothing of what is to be expected when many fail.
func (l *Loop) count() {
	clear(l.heals.sick)
	for _, v := range l.known.all {
		if v.sick.healable() {
			l.heals.sick[v.sick.backend]++
		}
	}
	for name, b := range l.heals.breakers {
		if b.running == 0 && !b.open(l.heals.sick[name]) {
			delete(l.heals.breakers, name)
		}
	}
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
		l.heals.breaker(r.backend).end(now, how)
		v.healed = now
	}
	if before != nil || v.sick != nil {
		l.count()
	}
	if l.heals.action == Heal && v.sick.healable() {
		l.planHeal(v, now)
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

// planHeal says when a volume that can be healed has its next turn: to be confirmed, or
// to be healed.
func (l *Loop) planHeal(v *volume, now time.Time) {
	switch {
	case !v.sick.confirmed() && v.sick.seen == 0: // there was no answer
	case !v.sick.confirmed():
		v.due = earlier(v.due, v.sick.firstSeen.Add(confirmAfter))
	case l.cfg.DryRun:
		v.sick.left = healer.LeftAlone{Reason: healer.DryRun, Because: "nothing is changed"}
		klog.InfoS("The loop would heal a volume", keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver),
			"steps", oneLine(strings.Join(v.sick.steps, ", ")))
	default:
		v.due = earlier(v.due, later(now, v.notBefore()))
	}
}
