// Package retry has the schedules of what is tried again without end, because it may
// succeed by itself: the tier transient of docs/errors.md, which prints them. It only
// says how long to wait. What ends after a few tries is not for it.
package retry

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csi-addons/node-healer/pkg/api"
)

// longest is the longest wait, but where a Schedule says why its own is shorter.
const longest = 11 * time.Minute

// Schedule is how long to wait before each further try: twice as long each time.
type Schedule struct {
	// What is tried again, in words.
	What string
	// First is the wait after the first failure, Max the longest.
	First, Max time.Duration
}

var (
	// Transient is for all that touches a storage or a driver, and where nothing else fits.
	Transient = Schedule{"a step that failed for a transient cause; the registration at the CSI-Addons controller; a report that the Kubernetes API refuses", time.Second, longest}
	// Outage is for reports that wait for the Kubernetes API. Eleven minutes after it is
	// back they would be news of long ago, and a node's informers ask it as often.
	Outage = Schedule{"reports to a Kubernetes API that does not answer", time.Second, 30 * time.Second}
)

// Schedules returns all of them; docs/errors.md prints it.
func Schedules() []Schedule { return []Schedule{Transient, Outage} }

// From returns Transient with another first wait.
func From(first time.Duration) Schedule {
	s := Transient
	s.First = first
	return s
}

// After returns the wait after the given number of failures in a row.
func (s Schedule) After(failures int) time.Duration {
	d := s.First
	for i := 1; i < failures && d < s.Max; i++ {
		d *= 2
	}
	return min(d, s.Max)
}

// AfterWithJitter returns the same, and up to a fifth more.
func (s Schedule) AfterWithJitter(failures int) time.Duration { return WithJitter(s.After(failures)) }

// WithJitter returns a wait that is up to a fifth longer: many nodes that failed at the
// same time do not meet again.
func WithJitter(d time.Duration) time.Duration { return wait.Jitter(d, 0.2) }

// permissionRetry gives an administrator's change of rights time to arrive.
const permissionRetry = 30 * time.Second

// After returns how long to wait before another try of what failed so the given number of
// times in a row, and false where there is no other try before something changes. The
// caller adds jitter.
func After(c api.Class, failures int) (time.Duration, bool) {
	switch {
	case c.Type == api.TypePermission:
		return permissionRetry, failures <= 1
	case c.Tier == api.Transient:
		return Transient.After(failures), true
	case c.Tier == api.Retriable:
		return From(time.Minute).After(failures), true
	}
	return 0, false
}
