package loop

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// confirmAfter is when a volume is checked again before it is healed, if what is wrong may
// pass by itself: kubelet and drivers mount in several calls. All checks within that time
// must find the same, too.
const confirmAfter = 5 * time.Second

// sickness is what the loop knows of a volume that was abnormal when it was last checked. It is zero
// for one that was healthy.
type sickness struct {
	// since is when a check first found the volume abnormal.
	since time.Time
	// broken is since when there are steps to try; zero while there are none.
	broken time.Time
	// found are the reasons of the acute conditions and the names of the steps, as one text to
	// compare: other conditions come and go, and are no reason to heal again.
	found string
	// lasting is whether what is wrong cannot pass by itself.
	lasting bool
	// steps are those that may be tried, as a person reads them.
	steps []string
	// firstSeen and lastSeen are the times of the first and the last of the checks in a row that
	// found the same; zero where the last check had no answer, or something changed since.
	firstSeen, lastSeen time.Time
	backend             string
	// left says why no heal is tried until something changes, or something else is wrong; zero
	// while heals are tried.
	left healer.LeftAlone
	// goneSince is when a check first found nothing of what is wrong; zero if the last one did.
	goneSince time.Time
}

// observe takes over what a check found that found a volume abnormal at a time.
func (s *sickness) observe(r healer.Report, driver string, now time.Time) {
	if s.since.IsZero() {
		s.since = now
	}
	what, steps := healableOf(r.After)
	if s.found != what {
		s.interrupted()
		s.found, s.left = what, healer.LeftAlone{}
	}
	if s.firstSeen.IsZero() {
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
}

// healableOf returns sickness.found and sickness.steps of a diagnosis.
func healableOf(d healer.Diagnosis) (found string, steps []string) {
	var reasons, names []string
	for _, c := range d.Conditions {
		if c.Acute {
			reasons = append(reasons, string(c.Reason))
		}
	}
	for _, step := range d.Offers() {
		names = append(names, step.Name)
		steps = append(steps, fmt.Sprintf("%s at %s", step.Name, healer.QuoteName(step.MountPoint.Path)))
	}
	slices.Sort(reasons)
	slices.Sort(names)
	return strings.Join(slices.Compact(reasons), ",") + "; " + strings.Join(slices.Compact(names), ","), steps
}

// interrupted ends the row of checks that found the same.
func (s *sickness) interrupted() {
	s.firstSeen, s.lastSeen = time.Time{}, time.Time{}
}

// healable reports whether there is anything to try.
func (s *sickness) healable() bool {
	return len(s.steps) > 0 && s.left == (healer.LeftAlone{})
}

// confirmed reports whether checks found the same for confirmAfter, or it cannot pass by itself.
func (s *sickness) confirmed() bool {
	return s.lasting || s.lastSeen.Sub(s.firstSeen) >= confirmAfter
}

// gone takes over that a check found nothing of the volume, or nothing wrong with what of it could be
// judged. The sickness ends when checks did so for an interval: the volume may be about to be published
// again, or the API may not have said in time that a pod wants it.
func (s *sickness) gone(interval time.Duration, now time.Time) {
	if s.since.IsZero() || !s.goneSince.IsZero() && now.Sub(s.goneSince) >= interval {
		*s = sickness{}
		return
	}
	s.goneSince = cmp.Or(s.goneSince, now)
	s.interrupted()
	s.steps = nil
}
