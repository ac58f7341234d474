package nodeserver

import (
	"context"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// lately is how long it counts how a volume looked. Kubelet asks for the
	// usage of each one every minute; a volume that nobody asks for any more
	// may be gone.
	lately = 5 * time.Minute
	// maxRecentReports is many times the volumes of a node.
	maxRecentReports = 4096
)

// sightings keep how each volume looked when it was last asked for, as far as
// that may hit others too.
type recentReports struct {
	mu sync.Mutex
	by map[recentReportKey]recentReport
}

type recentReportKey struct{ driver, volumeID string }

// sighting is how one volume looked.
type recentReport struct {
	at time.Time
	// backends has each backend that the volume lies on once.
	backends []backendSeen
}

// backendSeen is what one backend made a volume suffer from; without troubles
// it was seen to work.
type backendSeen struct {
	backend  backend
	troubles []trouble
}

type trouble struct {
	status healer.Status
	reason healer.Reason
}

// witness is a Healer that remembers what its answers say of proven volumes.
type recorder struct {
	Healer

	seen *recentReports
}

// Heal implements Healer.
func (w recorder) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	report, err := w.Healer.Heal(ctx, v)
	return report, w.note(v, report, err)
}

// Check implements Healer.
func (w recorder) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	report, err := w.Healer.Check(ctx, v)
	return report, w.note(v, report, err)
}

func (w recorder) note(v healer.Volume, r healer.Report, err error) error {
	if err == nil && r.After.Case.Proven() {
		w.seen.note(recentReportKey{r.Driver, v.ID}, recentReport{time.Now(), backendsOf(r)})
	}
	return err
}

// note keeps a sighting instead of an older one of the same volume.
func (s *recentReports) note(k recentReportKey, seen recentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[recentReportKey]recentReport{}
	}
	if _, known := s.by[k]; !known && len(s.by) >= maxRecentReports {
		s.dropOldest()
	}
	s.by[k] = seen
}

func (s *recentReports) dropOldest() {
	var oldest recentReportKey
	for k, seen := range s.by {
		if first, known := s.by[oldest]; !known || seen.at.Before(first.at) {
			oldest = k
		}
	}
	delete(s.by, oldest)
}

// lately gives the sightings that still count, and forgets the others.
func (s *recentReports) lately(now time.Time) []recentReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []recentReport
	for k, seen := range s.by {
		if now.Sub(seen.at) > lately {
			delete(s.by, k)
			continue
		}
		found = append(found, seen)
	}
	return found
}
