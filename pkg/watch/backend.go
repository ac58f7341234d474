package watch

import (
	"maps"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/mount"
	"github.com/csi-addons/node-healer/pkg/retry"
)

const (
	// manySick is how many volumes of one backend are no coincidence.
	manySick = 3
	// trialBackoff is the time after the first trial that failed; each further one
	// doubles it.
	trialBackoff = 5 * time.Second
)

// backend is what several volumes depend on. While many of them are sick it may be what
// failed: then one heal is tried at a time, until one helped.
type backend struct {
	// sick counts its volumes that could be healed, running its heals.
	sick, running int
	// helps is whether the last trial helped, failures how many in a row did not.
	helps    bool
	failures int
	// until is when the next trial may begin.
	until time.Time
}

// notBefore is when the next heal may begin; zero: now.
func (b *backend) notBefore() time.Time {
	if b.sick < manySick {
		return time.Time{}
	}
	return b.until
}

// mayBegin reports whether one more heal may run.
func (b *backend) mayBegin() bool { return b.sick < manySick || b.helps || b.running == 0 }

// end takes over how a heal ended.
func (b *backend) end(now time.Time, how outcome) {
	b.running--
	switch how {
	case succeeded:
		b.helps, b.failures, b.until = true, 0, time.Time{}
	case failed:
		b.helps, b.failures = false, b.failures+1
		b.until = now.Add(retry.From(trialBackoff).AfterWithJitter(b.failures))
	case refused: // it says nothing of the backend
	}
}

// count takes over which volumes could be healed, and forgets the backends of which few
// could: how single volumes fared says nothing of what is to be expected when many fail.
func (h *healing) count(all []*volume) {
	for _, b := range h.backends {
		b.sick = 0
	}
	for _, v := range all {
		if v.sick.healable() {
			h.backend(v.sick.backend).sick++
		}
	}
	maps.DeleteFunc(h.backends, func(_ string, b *backend) bool { return b.sick < manySick && b.running == 0 })
}

// backend returns a backend by its name; one of which few volumes are sick has no past.
func (h *healing) backend(name string) *backend {
	b := h.backends[name]
	if b == nil {
		b = &backend{}
		h.backends[name] = b
	}
	return b
}

// backendOf returns what a sick volume has in common with others: its server, else its
// driver.
func backendOf(r healer.Report, driver string) string {
	for _, sb := range r.After.Case.Superblocks {
		if server := mount.Server(sb.FSType, sb.Source); server != "" {
			return "server " + server
		}
	}
	return "driver " + driver
}
