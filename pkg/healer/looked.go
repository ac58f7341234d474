package healer

import "sync"

// looked remembers of which volumes the containers were looked into since the
// server started.
type looked struct {
	mu   sync.Mutex
	done map[key]bool
	// newest has the highest mount id of the last time that a volume was healthy with
	// what its record says: the record itself is not written for that.
	newest map[key]uint64
}

// healthy notes a mount id of a time at which the record was true.
func (l *looked) healthy(k key, newest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		l.newest = map[key]uint64{}
	}
	l.newest[k] = max(l.newest[k], newest)
}

// newestOf gives the highest mount id of a time at which the record was true.
func (l *looked) newestOf(k key, r *Record) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.newest[k], r.Newest)
}

// first is true until done was called for the volume.
func (l *looked) first(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.done[k]
}

func (l *looked) note(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = map[key]bool{}
	}
	l.done[k] = true
}
