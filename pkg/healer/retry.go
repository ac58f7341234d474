package healer

import "time"

const (
	// maxBackoff is the longest time between two tries of what may succeed by itself.
	maxBackoff = 11 * time.Minute
	// storageBackoff is the shortest one where a storage or a driver is touched.
	storageBackoff = time.Second
	// permissionRetry gives an administrator's change of rights time to arrive.
	permissionRetry = 30 * time.Second
)

// retriableAfter are the times before the tries of a retriable error.
var retriableAfter = [...]time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute}

// Backoff returns how long to wait after the given number of failures in a row: twice as
// long each time, from the first to eleven minutes.
func Backoff(first time.Duration, failures int) time.Duration {
	d := first
	for i := 1; i < failures && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}

// RetryAfter returns how long to wait before another try of what failed so the given
// number of times in a row, and false where there is no other try before something
// changes. The caller adds jitter.
func (c Class) RetryAfter(failures int) (time.Duration, bool) {
	switch {
	case c.Type == TypePermission:
		return permissionRetry, failures <= 1
	case c.Tier == Transient:
		return Backoff(storageBackoff, failures), true
	case c.Tier == Retriable && failures <= len(retriableAfter):
		return retriableAfter[max(failures, 1)-1], true
	}
	return 0, false
}
