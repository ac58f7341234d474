package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/retry"
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
	// found is what is wrong that a step may act on, and the steps, as one text to
	// compare: what else comes and goes is no reason to try again.
	found string
	// lasting is whether it cannot pass by itself.
	lasting bool
	// steps are those that may be tried, as a person reads them; none: nothing can be done.
	steps []string
	// seen counts the checks in a row that found it.
	seen    int
	backend string
	// tried has what was tried for each found, so that a diagnosis that changes to and
	// fro begins no schedule anew.
	tried map[string]*attempts
	// tries counts all heals that did not help.
	tries int
	// forgiven is when it was last tried again because something changed.
	forgiven time.Time
}

// attempts are the heals of one sickness that found the same.
type attempts struct {
	// failures counts those that did not help, refusals those that tried nothing.
	failures, refusals int
	// notBefore is when the next may begin.
	notBefore time.Time
	// left says why no more is tried until something changes; zero while something is.
	left healer.LeftAlone
}

// maxFound bounds how often a diagnosis may change until no more is tried.
const maxFound = 8

// observe returns the sickness after a check that found a volume abnormal at a time.
func (s *sickness) observe(r healer.Report, driver string, now time.Time) *sickness {
	var found, steps []string
	for _, c := range r.After.Conditions {
		if c.Acute {
			found = append(found, string(c.Reason))
		}
	}
	for _, step := range r.After.Offers() {
		steps = append(steps, fmt.Sprintf("%s at %s", step.Name, healer.QuoteName(step.MountPoint.Path)))
	}
	slices.Sort(found)
	slices.Sort(steps)
	what := strings.Join(slices.Compact(found), ",") + "; " + strings.Join(steps, ", ")
	if s == nil {
		s = &sickness{since: now, tried: map[string]*attempts{}}
	}
	if s.found != what {
		s.found, s.seen = what, 0
	}
	s.seen++
	s.steps, s.lasting, s.backend = steps, r.After.Lasting(), backendOf(r, driver)
	if s.tried[what] == nil {
		s.tried[what] = &attempts{}
		if len(s.tried) > maxFound {
			s.tried[what].left.Because = "what is wrong with it keeps changing"
		}
	}
	return s
}

// now returns the attempts at what was found last.
func (s *sickness) now() *attempts { return s.tried[s.found] }

// healable reports whether there is anything to try.
func (s *sickness) healable() bool {
	return s != nil && len(s.steps) > 0 && s.now().left == (healer.LeftAlone{})
}

// leftAlone says why no more is tried; zero while something is, or nothing is wrong.
func (s *sickness) leftAlone() healer.LeftAlone {
	if s == nil {
		return healer.LeftAlone{}
	}
	return s.now().left
}

// confirmed reports whether what is wrong has lasted.
func (s *sickness) confirmed() bool { return s.lasting || s.seen >= confirmations }

// healed takes over what became of a heal that left the volume abnormal, which counts
// among the attempts a, and returns whether anything was tried.
func (s *sickness) healed(a *attempts, r healer.Report, interval time.Duration, now time.Time) outcome {
	class, ran := r.Failure()
	if !ran {
		a.refusals++
		a.notBefore = now.Add(retry.From(interval).After(a.refusals))
		return refused
	}
	a.failures++
	s.tries++
	after, again := class.RetryAfter(a.failures)
	switch {
	case again:
		a.notBefore = now.Add(after)
	case class.Type == healer.TypePermission:
		a.left.Because = "a permission is missing"
	case class.Tier == healer.Terminal:
		a.left.Because = "another try cannot help"
	default:
		a.left = healer.LeftAlone{Reason: healer.RetryLimitExceeded, Because: fmt.Sprintf("%d tries did not help", s.tries)}
	}
	return failed
}

// forgive begins all schedules anew, because something changed; once in an interval, so
// that a driver that mounts again and again is no reason to heal as often.
func (s *sickness) forgive(interval time.Duration, now time.Time) {
	if s != nil && now.Sub(s.forgiven) >= interval {
		s.forgiven, s.tried = now, map[string]*attempts{s.found: {}}
	}
}
