package host

import (
	"errors"
	"sync"
)

// stuckProbes remembers the storages at which a worker waits that cannot be
// ended, so that no second one joins it: however often a hung volume is asked
// for, it costs one process.
type stuckProbes struct {
	mu    sync.Mutex
	ended map[stuckKey]<-chan struct{}
}

type stuckKey struct {
	dev  Dev
	root string // tells device nodes apart, which share a superblock
}

func stuckKeyOf(m Mount) stuckKey {
	k := stuckKey{dev: m.Dev}
	if m.MayBeNode() {
		k.root = m.Root
	}
	return k
}

// note remembers a probe whose worker is stuck.
func (s *stuckProbes) note(m Mount, err error) {
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.As(err, &stuck) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = map[stuckKey]<-chan struct{}{}
	}
	s.ended[stuckKeyOf(m)] = stuck.Ended()
}

// still is true while the worker of an earlier probe has not ended.
func (s *stuckProbes) still(m Mount) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.ended[stuckKeyOf(m)]
	if ended == nil {
		return false
	}
	select {
	case <-ended:
		delete(s.ended, stuckKeyOf(m))
		return false
	default:
		return true
	}
}
