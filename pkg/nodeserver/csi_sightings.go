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
	// maxSightings is many times the volumes of a node.
	maxSightings = 4096
)

// sightings keep how each volume looked when it was last asked for, as far as
// that may hit others too.
type sightings struct {
	mu sync.Mutex
	by map[sightingKey]sighting
}

type sightingKey struct{ driver, volumeID string }

// sighting is how one volume looked.
type sighting struct {
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
type witness struct {
	Healer

	seen *sightings
}

// Heal implements Healer.
func (w witness) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	report, err := w.Healer.Heal(ctx, v)
	return report, w.note(v, report, err)
}

// Check implements Healer.
func (w witness) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	report, err := w.Healer.Check(ctx, v)
	return report, w.note(v, report, err)
}

func (w witness) note(v healer.Volume, r healer.Report, err error) error {
	if err == nil && r.After.Case.Proven() {
		w.seen.note(sightingKey{r.Driver, v.ID}, sighting{time.Now(), backendsOf(r)})
	}
	return err
}

// note keeps a sighting instead of an older one of the same volume.
func (s *sightings) note(k sightingKey, seen sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[sightingKey]sighting{}
	}
	if _, known := s.by[k]; !known && len(s.by) >= maxSightings {
		s.dropOldest()
	}
	s.by[k] = seen
}

func (s *sightings) dropOldest() {
	var oldest sightingKey
	for k, seen := range s.by {
		if first, known := s.by[oldest]; !known || seen.at.Before(first.at) {
			oldest = k
		}
	}
	delete(s.by, oldest)
}

// lately gives the sightings that still count, and forgets the others.
func (s *sightings) lately(now time.Time) []sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []sighting
	for k, seen := range s.by {
		if now.Sub(seen.at) > lately {
			delete(s.by, k)
			continue
		}
		found = append(found, seen)
	}
	return found
}
