package kube

import "time"

// makeRoom drops the oldest of what is remembered, if there are limit already.
func makeRoom[K comparable, V any](remembered map[K]V, limit int, age func(V) time.Time) {
	if len(remembered) < limit {
		return
	}
	var oldest K
	var since time.Time
	for k, v := range remembered {
		if since.IsZero() || age(v).Before(since) {
			oldest, since = k, age(v)
		}
	}
	delete(remembered, oldest)
}
