package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// scanMaxAge is how long a scan answers further callers. A scan walks over all
// processes (about 0.1 s of CPU for 600 of them with 300 mount namespaces), and when
// one volume is sick its pods' other volumes are asked about in the same seconds.
const scanMaxAge = 10 * time.Second

// holderScans keeps the last scan. The zero value is ready for use.
type holderScans struct {
	mu      sync.Mutex
	started time.Time
	// last has an entry for everything that the scan was asked for.
	last workerops.HoldersAnswer
}

// share returns a scan that covers everything asked for: a recent one, the one
// under way, or a new one. There is one at a time.
func (s *holderScans) share(ctx context.Context, at *probes, superblocks, devices []Dev, scan func(context.Context) (workerops.HoldersAnswer, error)) (workerops.HoldersAnswer, error) {
	answer, covered := s.recent(superblocks, devices)
	if covered {
		return answer, nil
	}
	err := at.serialize(ctx, processes, func() (err error) {
		if answer, covered = s.recent(superblocks, devices); covered {
			return nil
		}
		started := time.Now()
		answer, err = scan(ctx)
		if err == nil || errors.Is(err, worker.ErrLeft) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.started, s.last = started, answer
		}
		return err
	})
	if err != nil && !errors.Is(err, worker.ErrLeft) { // the scan skipped a process that blocked it
		return workerops.HoldersAnswer{}, fmt.Errorf("who holds it: %w", err)
	}
	return answer, nil
}

// recent returns the last scan, if it covers everything asked for.
func (s *holderScans) recent(superblocks, devices []Dev) (workerops.HoldersAnswer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.started) >= scanMaxAge {
		return workerops.HoldersAnswer{}, false
	}
	return s.last, covers(s.last.Superblocks, superblocks) && covers(s.last.Devices, devices)
}

func covers(answers map[workerops.Number]workerops.Held, devs []Dev) bool {
	for _, d := range devs {
		if _, covered := answers[workerops.Number(d)]; !covered {
			return false
		}
	}
	return true
}
