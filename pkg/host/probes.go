package host

import (
	"errors"
	"sync"
	"time"
)

// probes keeps at most one worker at each storage. Callers that come while one
// is at it share its answer. One that cannot be ended is remembered with the
// answer it stands for until it ends: however often a hung volume is asked for,
// it costs one process.
type probes struct {
	mu    sync.Mutex
	under map[storage]*probing
	// slow counts answers in a row that came late. What is forgotten counts from
	// the start.
	slow kept[storage, lateness]
}

// lateness is of one filesystem: device numbers are used again.
type lateness struct {
	fsType, source string
	count          int
}

// storage is what a probe touches: a superblock, or a device node, which shares
// the superblock of devtmpfs with all others.
type storage struct {
	dev  Dev
	root string
}

func storageOf(m Mount) storage {
	s := storage{dev: m.Dev}
	if m.MayBeNode() {
		s.root = m.Root
	}
	return s
}

// sameView is true for mounts of one superblock that show the same directory of
// it: an export may share its superblock with another, and be gone alone.
func sameView(a, b Mount) bool {
	return a.Dev == b.Dev && a.Root == b.Root && a.FSType == b.FSType && a.Source == b.Source
}

// probing is one probe under way.
type probing struct {
	// of is the mount that is looked at; the zero value for a write.
	of    Mount
	began time.Time
	done  chan struct{}
	// What it found, once done; without paths.
	found Sight
	// ended closes when a worker ends that outlived its deadline; nil when there
	// is none.
	ended <-chan struct{}
}

// join gives the probe that is at the storage, or makes the caller the one who
// asks: first is true then, and finish must follow.
func (p *probes) join(s storage, of Mount) (at *probing, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at = p.under[s]; at != nil {
		select {
		case <-at.ended: // nil, which is never ready, while it is at work
		default:
			return at, false
		}
	}
	if p.under == nil {
		p.under = map[storage]*probing{}
	}
	at = &probing{of: of, began: time.Now(), done: make(chan struct{})}
	p.under[s] = at
	return at, true
}

// finish hands the answer to everybody who waits for it.
func (p *probes) finish(s storage, at *probing, found Sight, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found.Paths = nil
	at.found = found
	var stuck interface{ Ended() <-chan struct{} }
	if errors.As(err, &stuck) {
		at.ended = stuck.Ended()
	} else {
		delete(p.under, s)
	}
	close(at.done)
}

// late counts an answer and gives how many in a row came late.
func (p *probes) late(m Mount, late bool) int {
	s := storageOf(m)
	if !late {
		p.slow.forget(s)
		return 0
	}
	so, _ := p.slow.of(s)
	if so.fsType != m.FSType || so.source != m.Source {
		so = lateness{fsType: m.FSType, source: m.Source}
	}
	so.count++
	p.slow.keep(s, so)
	return so.count
}
