package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/touch"
)

// holdersKeep is how long a scan is good enough for the next one who asks. A
// scan walks over all processes (about 0.1 s of CPU for 600 of them with 300
// mount namespaces), and when one volume is sick its other pods' volumes are
// asked about in the same seconds.
const holdersKeep = 10 * time.Second

// holderScans keeps the last scan, and lets one scan run at a time. The zero
// value is ready for use.
type holderScans struct {
	mu sync.Mutex
	// running closes when the scan under way is over; nil when there is none.
	running chan struct{}
	last    holderScan
	// stuck close when a worker ends that did not let itself be ended: one of a
	// scan (zero), or one that asked a device.
	stuck map[Dev]<-chan struct{}
}

// holderScan is one scan with what it was asked for.
type holderScan struct {
	started              time.Time
	superblocks, devices map[Dev]bool
	answer               touch.HoldersAnswer
}

func (s *holderScan) fresh() bool { return time.Since(s.started) < holdersKeep }

func (s *holderScan) covers(superblocks, devices []Dev) bool {
	for _, d := range superblocks {
		if !s.superblocks[d] {
			return false
		}
	}
	for _, d := range devices {
		if !s.devices[d] {
			return false
		}
	}
	return true
}

type runScan func(ctx context.Context, superblocks, devices []Dev) (touch.HoldersAnswer, error)

// share gives a scan that tells of all that is asked for: a recent one, the one
// under way, or a new one. A new one also asks for what a recent one told, so
// that callers in turn do not push out each other's.
func (s *holderScans) share(ctx context.Context, superblocks, devices []Dev, run runScan) (touch.HoldersAnswer, error) {
	for {
		s.mu.Lock()
		recent := s.last.fresh()
		switch {
		case recent && s.last.covers(superblocks, devices):
			defer s.mu.Unlock()
			return s.last.answer, nil
		case s.waits(Dev{}):
			defer s.mu.Unlock()
			return touch.HoldersAnswer{}, errors.New("who holds it: an earlier scan cannot be ended")
		case s.running == nil:
			next := holderScan{started: time.Now(), superblocks: map[Dev]bool{}, devices: map[Dev]bool{}}
			if recent {
				maps.Copy(next.superblocks, s.last.superblocks)
				maps.Copy(next.devices, s.last.devices)
			}
			add(next.superblocks, superblocks)
			add(next.devices, devices)
			s.running = make(chan struct{})
			s.mu.Unlock()
			return s.scan(ctx, next, run)
		}
		running := s.running
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return touch.HoldersAnswer{}, fmt.Errorf("who holds it: %w", ctx.Err())
		}
	}
}

func (s *holderScans) scan(ctx context.Context, next holderScan, run runScan) (touch.HoldersAnswer, error) {
	answer, err := run(ctx, slices.Collect(maps.Keys(next.superblocks)), slices.Collect(maps.Keys(next.devices)))
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.running)
	s.running = nil
	if err != nil {
		s.note(Dev{}, err)
		return touch.HoldersAnswer{}, fmt.Errorf("who holds it: %w", err)
	}
	// It may have been asked for more on the way.
	for n := range answer.Superblocks {
		next.superblocks[Dev(n)] = true
	}
	next.answer = answer
	s.last = next
	return answer, nil
}

// note remembers a worker that cannot be ended. The caller holds the lock.
func (s *holderScans) note(at Dev, err error) {
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.As(err, &stuck) {
		return
	}
	if s.stuck == nil {
		s.stuck = map[Dev]<-chan struct{}{}
	}
	s.stuck[at] = stuck.Ended()
}

// waits is true while a worker noted there has not ended. The caller holds the
// lock.
func (s *holderScans) waits(at Dev) bool {
	ended, noted := s.stuck[at]
	if !noted {
		return false
	}
	select {
	case <-ended:
		delete(s.stuck, at)
		return false
	default:
		return true
	}
}

func add(set map[Dev]bool, devs []Dev) {
	for _, d := range devs {
		set[d] = true
	}
}
