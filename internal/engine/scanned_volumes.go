package engine

import (
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxScanned bounds the volumes that are remembered. To forget one costs one more walk
// over all processes, and a proof that is as old as the record.
const maxScanned = 4096

// scannedVolumes remembers, while the server runs, of which volumes the containers
// were scanned and when they were last healthy.
type scannedVolumes struct {
	mu sync.Mutex // held over a read and the write that follows from it
	of *lru.Cache // scannedVolume by key
}

type scannedVolume struct {
	// containers is true once the containers were scanned and nothing stale was found.
	containers bool
	// newest is the highest mount id of the last time that the volume was healthy with
	// what its record says: the record itself is not written for that.
	newest uint64
	// healthy is that time, since the boot.
	healthy time.Duration
	// started is the highest id of mounts at mount points without a record, for which no
	// container was found that started with something else.
	started uint64
	// lookedUp is true once its FUSE daemon said that a name which cannot exist does not.
	lookedUp bool
}

func newScannedVolumes() *scannedVolumes { return &scannedVolumes{of: lru.New(maxScanned)} }

func (s *scannedVolumes) get(k key) scannedVolume {
	v, _ := s.of.Get(k)
	known, _ := v.(scannedVolume)
	return known
}

func (s *scannedVolumes) change(k key, change func(*scannedVolume)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.get(k)
	change(&v)
	s.of.Add(k, v)
}

// setContainers records whether the containers were scanned and nothing stale was found.
func (s *scannedVolumes) setContainers(k key, scanned bool) {
	s.change(k, func(v *scannedVolume) { v.containers = scanned })
}

// setHealthy records a time at which the record was true, and a mount id of then.
func (s *scannedVolumes) setHealthy(k key, when time.Duration, newest uint64) {
	s.change(k, func(v *scannedVolume) { v.healthy, v.newest = when, max(v.newest, newest) })
}

// newestOf returns the highest mount id of a time at which the record was true.
func (s *scannedVolumes) newestOf(k key, r *healer.Record) uint64 {
	return max(s.get(k).newest, r.Newest)
}
