package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// confirmAfter is when a volume is checked again before it is healed, if what is
	// wrong may pass by itself: kubelet and drivers mount in several calls.
	confirmAfter = 5 * time.Second
	// confirmations is how many checks in a row must have found the same.
	confirmations = 2
)

// outcome is what became of a heal.
type outcome int

const (
	succeeded outcome = iota
	failed
	// refused: nothing was tried. The gate may let a step in later.
	refused
)

// sickness is what the loop knows of a volume that was abnormal when it was last checked.
type sickness struct {
	since time.Time
	// found is what is wrong and what could be done, as one text to compare.
	found string
	// lasting is whether it cannot pass by itself.
	lasting bool
	// steps are those that may be tried, as a person reads them; none: nothing can be done.
	steps []string
	// seen counts the checks in a row that found it.
	seen    int
	backend string
	// tries counts the heals that did not help, refusals those that tried nothing.
	tries, refusals int
	// notBefore is when the next heal may begin.
	notBefore time.Time
	// left says why no more is tried until something changes; empty while something is.
	left string
}

// observe returns the sickness after a check that found a volume abnormal at a time.
func (s *sickness) observe(r healer.Report, driver string, now time.Time) *sickness {
	found := reasons(r)
	var steps []string
	for _, step := range r.After.Offers() {
		steps = append(steps, fmt.Sprintf("%s at %s", step.Name, healer.QuoteName(step.MountPoint.Path)))
	}
	slices.Sort(steps)
	found += "; " + strings.Join(steps, ", ")
	switch {
	case s == nil:
		s = &sickness{since: now, found: found}
	case s.found != found: // what failed before may not now
		*s = sickness{since: s.since, found: found}
	}
	s.seen++
	s.steps, s.lasting, s.backend = steps, r.After.Lasting(), backendOf(r, driver)
	return s
}

// healable reports whether there is anything to try.
func (s *sickness) healable() bool { return s != nil && len(s.steps) > 0 && s.left == "" }

// confirmed reports whether what is wrong has lasted.
func (s *sickness) confirmed() bool { return s.lasting || s.seen >= confirmations }

// healed takes over what became of a heal that left the volume abnormal, and returns
// whether anything was tried.
func (s *sickness) healed(r healer.Report, interval time.Duration, now time.Time) outcome {
	class, ran := r.Failure()
	if !ran {
		s.refusals++
		s.notBefore = now.Add(healer.Backoff(interval, s.refusals))
		return refused
	}
	s.tries++
	after, again := class.RetryAfter(s.tries)
	switch {
	case again:
		s.notBefore = now.Add(after)
	case class.Type == healer.TypePermission:
		s.left = "a permission is missing"
	case class.Tier == healer.Terminal:
		s.left = "another try cannot help"
	default:
		s.left = fmt.Sprintf("RetryLimitExceeded: %d tries did not help", s.tries)
	}
	return failed
}

// again forgets why no more was tried: something changed.
func (s *sickness) again() {
	if s != nil {
		s.left, s.tries, s.refusals, s.notBefore = "", 0, 0, time.Time{}
	}
}
