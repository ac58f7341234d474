package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/retry"
)

const (
	// confirmAfter is when a volume is checked again before it is healed, if what is
	// wrong may pass by itself: kubelet and drivers mount in several calls.
	confirmAfter = 5 * time.Second
	// confirmations is how many checks in a row must have found the same, the last of
	// them confirmAfter after the first: events bring checks nearer.
	confirmations = 2
	// freeRelapses is how often a volume that the loop healed may fall sick again within an
	// interval and be healed at once. After that each time has a wait as if a heal had
	// failed: a daemon that crashes again and again is not restarted as fast as it can.
	freeRelapses = 2
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
	// broken is since when there are steps to try; zero while there are none.
	broken time.Time
	// found is what is wrong that a step may act on, and the steps, as one text to
	// compare: what else comes and goes is no reason to try again.
	found string
	// lasting is whether it cannot pass by itself.
	lasting bool
	// steps are those that may be tried, as a person reads them; none: nothing can be done.
	steps []string
	// seen counts the checks in a row that found it, the first of them at firstSeen, the
	// last at lastSeen.
	seen                int
	firstSeen, lastSeen time.Time
	backend             string
	schedule
	// tries counts all heals that did not help.
	tries int
	// forgiven is when it is or was last tried again because something changed.
	forgiven time.Time
	// goneSince is when a check first found nothing of the volume, zero if the last one did.
	goneSince time.Time
}

// schedule says when the next heal of a sick volume may begin. A diagnosis that changes
// begins none anew: one that changes to and fro would be a heal at each change.
type schedule struct {
	// failures counts those that did not help, by the schedule of what failed: an hour of
	// EBUSY uses up no try of what fails for another cause. refusals counts those that
	// tried nothing.
	failures map[api.Class]int
	refusals int
	// notBefore is when the next may begin.
	notBefore time.Time
	// left says why no more is tried until something changes, or something else is wrong;
	// zero while something is.
	left healer.LeftAlone
}

// observe returns the sickness after a check that found a volume abnormal at a time.
func (s *sickness) observe(r healer.Report, driver string, now time.Time) *sickness {
	if s == nil {
		s = &sickness{since: now}
	}
	what, steps := judged(r.After)
	if s.found != what {
		s.found, s.seen, s.left = what, 0, healer.LeftAlone{}
	}
	if s.seen++; s.seen == 1 {
		s.firstSeen = now
	}
	s.lastSeen, s.goneSince = now, time.Time{}
	switch {
	case len(steps) == 0:
		s.broken = time.Time{}
	case s.broken.IsZero():
		s.broken = now
	}
	s.steps, s.lasting, s.backend = steps, r.After.Lasting(), backendOf(r, driver)
	return s
}

// judged returns what is wrong with a volume that a step may act on, with the steps that
// may be tried, as one text, and the steps for a person. A container that is started anew
// is the same one in the text, which names it by its pod.
func judged(d healer.Diagnosis) (found string, steps []string) {
	var reasons, offers []string
	for _, c := range d.Conditions {
		if c.Acute {
			reasons = append(reasons, string(c.Reason))
		}
	}
	for _, step := range d.Offers() {
		at := step.MountPoint.Path
		steps = append(steps, fmt.Sprintf("%s at %s", step.Name, healer.QuoteName(at)))
		if in := step.MountPoint.InContainer; in != nil {
			at = in.PodUID + ":" + in.Mount.Path
		}
		offers = append(offers, fmt.Sprintf("%s at %s", step.Name, healer.QuoteName(at)))
	}
	slices.Sort(reasons)
	slices.Sort(offers)
	slices.Sort(steps)
	return strings.Join(slices.Compact(reasons), ",") + "; " + strings.Join(slices.Compact(offers), ", "), steps
}

// brokeAt is since when the volume is to be healed, or else sick.
func (s *sickness) brokeAt() time.Time {
	switch {
	case s == nil:
		return time.Time{}
	case s.broken.IsZero():
		return s.since
	}
	return s.broken
}

// interrupted ends the row of checks that found the same: one had no answer.
func (s *sickness) interrupted() {
	if s != nil {
		s.seen = 0
	}
}

// healable reports whether there is anything to try.
func (s *sickness) healable() bool {
	return s != nil && len(s.steps) > 0 && s.left == (healer.LeftAlone{})
}

// leftAlone says why no more is tried; zero while something is, or nothing is wrong.
func (s *sickness) leftAlone() healer.LeftAlone {
	if s == nil {
		return healer.LeftAlone{}
	}
	return s.left
}

// confirmed reports whether what is wrong has lasted.
func (s *sickness) confirmed() bool {
	return s.lasting || s.seen >= confirmations && s.lastSeen.Sub(s.firstSeen) >= confirmAfter
}

// gone takes over that a check found nothing of the volume, and returns nil when that was
// so for an interval. It may be about to be published again, or the API may not have said
// in time that it is wanted.
func (s *sickness) gone(interval time.Duration, now time.Time) *sickness {
	switch {
	case s == nil, !s.goneSince.IsZero() && now.Sub(s.goneSince) >= interval:
		return nil
	case s.goneSince.IsZero():
		s.goneSince = now
	}
	s.steps, s.seen = nil, 0
	return s
}

// healed takes over what became of a heal that left the volume abnormal, or had no answer.
// found is what was wrong before it.
func (s *sickness) healed(found string, r healer.Report, err error, interval time.Duration, now time.Time) outcome {
	class, ran := r.Failure()
	switch {
	case err != nil:
		class = healer.Classify("", "", err)
	case !ran:
		s.refusals++
		s.notBefore = now.Add(retry.From(interval).AfterWithJitter(s.refusals))
		return refused
	case s.found != found && len(s.steps) == 0 && r.Helped():
		s.schedule = schedule{} // what is left is no matter of a step
		return succeeded
	}
	s.tries++
	after, again := retry.After(class, s.fail(class))
	if !again {
		after = retry.Transient.After(s.tries) // for what is wrong if it is something else
	}
	s.notBefore = now.Add(retry.WithJitter(after))
	if again || s.found != found && len(s.steps) > 0 {
		return failed
	}
	s.left = healer.LeftAlone{Reason: healer.TerminalError, Because: "another try cannot help"}
	if class.Type == api.TypePermission {
		s.left = healer.LeftAlone{Reason: healer.PermissionMissing, Because: "a permission is missing"}
	}
	if s.left.Detail = r.FailureText(class); s.left.Detail == "" && err != nil {
		s.left.Detail = err.Error()
	}
	return failed
}

// fail counts a heal that failed, and returns how many did that have the same schedule: a
// missing permission has one in any tier.
func (s *schedule) fail(c api.Class) int {
	kind := api.Class{Tier: c.Tier}
	if c.Type == api.TypePermission {
		kind = api.Class{Type: c.Type}
	}
	if s.failures == nil {
		s.failures = map[api.Class]int{}
	}
	s.failures[kind]++
	return s.failures[kind]
}

// forgive begins the schedule anew, because something changed: at once, or an interval
// after it last did so. A driver that mounts again and again is no reason to heal as often.
func (s *sickness) forgive(interval time.Duration, now time.Time) {
	if s == nil || s.forgiven.After(now) { // what changed before waits for the same time
		return
	}
	s.forgiven = later(now.Add(settle), s.forgiven.Add(interval))
	anew := s.forgiven
	if s.left == (healer.LeftAlone{}) {
		anew = earlier(anew, s.notBefore)
	}
	s.seen, s.schedule = 0, schedule{notBefore: anew}
}
