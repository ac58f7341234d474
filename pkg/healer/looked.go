package healer

import (
	"sync"
	"time"
)

// looked remembers, for as long as the server runs, of which volumes the containers
// were looked into, and when they were last healthy. What it forgets costs one more
// walk over all processes, and a proof that is as old as the record.
type scanned struct {
	mu sync.Mutex
	of map[key]lookedAt
}

type lookedAt struct {
	// inside is true once the containers were looked into.
	inContainer bool
	// newest is the highest mount id of the last time that the volume was healthy with
	// what its record says: the record itself is not written for that.
	newest uint64
	// healthy is that time, since the boot.
	healthy time.Duration
	// started is the highest id of mounts at mount points without a record, for which no
	// container was found that started with something else.
	started uint64
}

// maxLooked bounds the volumes that are remembered.
const maxLooked = 4096

func (l *scanned) change(k key, change func(*lookedAt)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.of[k]
	if l.of == nil {
		l.of = map[key]lookedAt{}
	}
	if !known && len(l.of) >= maxLooked {
		for other := range l.of {
			delete(l.of, other)
			break
		}
	}
	change(&at)
	l.of[k] = at
}

func (l *scanned) get(k key) lookedAt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[k]
}

// healthy notes a time at which the record was true, and a mount id of then.
func (l *scanned) healthy(k key, when time.Duration, newest uint64) {
	l.change(k, func(at *lookedAt) { at.healthy, at.newest = when, max(at.newest, newest) })
}

// newestOf gives the highest mount id of a time at which the record was true.
func (l *scanned) newestOf(k key, r *Record) uint64 { return max(l.get(k).newest, r.Newest) }

// first is true until note was called for the volume.
func (l *scanned) first(k key) bool { return !l.get(k).inContainer }

// doubt has first be true again.
func (l *scanned) writeCheck(k key) { l.change(k, func(at *lookedAt) { at.inContainer = false }) }

func (l *scanned) note(k key) { l.change(k, func(at *lookedAt) { at.inContainer = true }) }
