package loop

import (
	"maps"
	"time"

	"golang.org/x/time/rate"

	"github.com/csi-addons/node-healer/pkg/facts/netfs"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// healsPerMinute bounds the heals that begin on this node; healsBurst may begin at
	// once.
	healsPerMinute = 120
	healsBurst     = 30
	// maxHeals bounds those that run at once.
	maxHeals = 4
	// manySick is how many volumes of one backend are no coincidence.
	manySick = 3
	// trialBackoff is the time after the first trial that failed; each further one
	// doubles it.
	trialBackoff = 5 * time.Second
)

// healing is what the loop knows of its heals.
type healing struct {
	action  Action
	running int
	budget  *rate.Limiter
	// backends has the backends of which many volumes could be healed, and those at which heals
	// run.
	backends map[string]*backend
}

// nextHeal returns that of the sick volumes whose heal begins now; nil for none. Of several it is the one
// that was tried longest ago, one that was never tried or whose last heal helped before all: volumes whose heals always
// fail would else keep the others from being tried, also where they are well between those heals.
// ask is when to ask again, unless a check or a heal ends before.
func (l *Loop) nextHeal(sick []*volume, now time.Time) (next *volume, ask time.Time) {
	h := &l.heals
	ask = now.Add(actionGap)
	if h.action != Heal {
		return nil, ask
	}
	for _, v := range sick {
		if v.running || !v.sick.confirmed() {
			continue
		}
		at, may := v.notBefore, h.running < maxHeals
		if b := h.backend(v.sick.backend); b.sick >= manySick {
			at, may = later(at, b.until), may && (b.helps || b.running == 0)
		}
		switch {
		case now.Before(at):
			ask = earlier(ask, at)
		case may && (next == nil || v.tried.Before(next.tried)):
			next = v
		}
	}
	if next != nil && h.budget.TokensAt(now) < 1 {
		return nil, now.Add(time.Minute / healsPerMinute)
	}
	return next, ask
}

// backoff says when the next heal of a volume may begin: ever more rarely, also where each
// heal helps and the volume breaks again within an interval. A daemon that crashes again and
// again is not restarted as fast as it can. A diagnosis that changes begins no backoff anew:
// one that changes to and fro would be a heal at each change.
type backoff struct {
	// tries counts the heals since the volume was last healthy for an interval.
	tries int
	// helped counts those of the tries that helped. failures counts those that failed or were
	// refused since one helped or something changed.
	helped, failures int
	// untold is true where the last of the tries did not come to call the driver with what had changed before
	// that try: that this has changed is no reason for another one.
	untold bool
	// away counts the heals in a row that found nobody listening at the driver's socket. They
	// are no tries: nothing was asked of the driver, so only the next of them waits longer.
	away int
	// notBefore is when the next heal may begin.
	notBefore time.Time
	// retried is when the backoff last began anew because something changed, or is about to.
	retried time.Time
}

// retry begins the backoff of a sick volume anew, because something changed: at once, or an interval
// after the last time. A driver that mounts again and again must not have its volume healed as often.
// A change that comes while an earlier one waits for that interval counts with it. It is false where the
// backoff goes on.
func (v *volume) retry(interval time.Duration, now time.Time) bool {
	left, waits := v.sick.left != (healer.LeftAlone{}), v.retried.After(now)
	if !left && (waits || !v.sick.healable()) {
		return false
	}
	if !waits {
		v.retried = later(now.Add(changeDelay), v.retried.Add(interval))
	}
	at := v.retried
	if !left {
		at = earlier(at, v.notBefore)
	}
	v.sick.interrupted()
	v.sick.left = healer.LeftAlone{}
	v.failures, v.away, v.notBefore = 0, 0, at
	return true
}

// driverCameBack has the volumes of a driver checked, and the sick ones healed at once. A daemon that
// ended with the driver before it was followed told nothing. Whatever failed until now may have failed
// because nobody listened at the driver's socket; and kubelet starts a driver that crashes again and
// again ever more rarely, so it may not listen for long.
func (l *Loop) driverCameBack(driver string, now time.Time) {
	for _, v := range l.known.all {
		if v.key.driver == driver {
			l.cameBack(v, now)
		}
	}
}

// cameBack has a volume checked, and begins the backoff of a sick one and of its backend anew, because its
// driver listens again. A heal that runs may have met no driver yet, so that is done when it ends. The volume
// is checked first: what is wrong may be gone with the driver's return.
func (l *Loop) cameBack(v *volume, now time.Time) {
	if v.driverBack = v.running; v.running {
		return
	}
	v.due = earlier(v.due, now.Add(changeDelay))
	if v.isSick() {
		v.retried = time.Time{}
		v.retry(0, now)
		l.heals.retry(v.sick.backend)
	}
}

// backend is what several volumes depend on: a server, or a driver. While many of its volumes are sick
// the backend itself may have failed: then one heal is tried at a time, until one helped.
type backend struct {
	// sick counts its volumes that could be healed, running its heals.
	sick, running int
	// helps is whether the last heal helped, failures how many in a row did not.
	helps    bool
	failures int
	// away counts the heals in a row that found nobody listening at the driver's socket.
	away int
	// until is when the next trial may begin.
	until time.Time
}

// count takes over which volumes could be healed, and forgets the backends of which few could: how
// heals of single volumes ended says nothing of the backend when many volumes are sick.
func (h *healing) count(sick []*volume) {
	for _, b := range h.backends {
		b.sick = 0
	}
	for _, v := range sick {
		h.backend(v.sick.backend).sick++
	}
	maps.DeleteFunc(h.backends, func(_ string, b *backend) bool { return b.sick < manySick && b.running == 0 })
}

// backend returns a backend by its name; a new one where none is known.
func (h *healing) backend(name string) *backend {
	b := h.backends[name]
	if b == nil {
		b = &backend{}
		h.backends[name] = b
	}
	return b
}

// retry has the next trial at a backend begin at once, because what failed there may succeed now.
func (h *healing) retry(name string) {
	if b := h.backends[name]; b != nil {
		b.failures, b.away, b.until = 0, 0, time.Time{}
	}
}

// backendOf returns what a sick volume has in common with others: its server, else its driver, if that is
// called first. Where no server is known, volumes that need no call of a driver do not wait for one that is away.
func backendOf(r healer.Report, driver string) string {
	for _, sb := range r.After.Case.Superblocks {
		if server := netfs.Server(sb.FSType, sb.Source); server != "" {
			return "server " + server
		}
	}
	if offers := r.After.Offers(); len(offers) > 0 && offers[0].Cost != healer.Delegate && offers[0].Cost != healer.Restage {
		return "mounts of " + driver
	}
	return "driver " + driver
}
