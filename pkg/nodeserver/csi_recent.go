package nodeserver

import (
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer/provider/network"
)

const (
	// recentFor is how long the last report of a volume counts. Kubelet asks for the
	// usage of each volume every minute; one that is no longer asked for may be gone.
	recentFor = 5 * time.Minute
	// maxRecentReports is many times the volumes of a node.
	maxRecentReports = 4096
)

// recentReports keep what the last report of each proven volume shows of its
// backends.
type recentReports struct {
	mu       sync.Mutex
	byVolume map[volumeKey]recentReport
}

type volumeKey struct{ driver, volumeID string }

type recentReport struct {
	at       time.Time
	backends []network.Health
}

// add replaces the earlier report of the same volume.
func (r *recentReports) add(k volumeKey, report recentReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byVolume == nil {
		r.byVolume = map[volumeKey]recentReport{}
	}
	if _, known := r.byVolume[k]; !known && len(r.byVolume) >= maxRecentReports {
		r.dropOldest()
	}
	r.byVolume[k] = report
}

func (r *recentReports) dropOldest() {
	var oldest volumeKey
	for k, report := range r.byVolume {
		if first, known := r.byVolume[oldest]; !known || report.at.Before(first.at) {
			oldest = k
		}
	}
	delete(r.byVolume, oldest)
}

// backends returns, volume by volume, what the reports that still count show, and
// drops the others.
func (r *recentReports) backends(now time.Time) [][]network.Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found [][]network.Health
	for k, report := range r.byVolume {
		if now.Sub(report.at) > recentFor {
			delete(r.byVolume, k)
			continue
		}
		found = append(found, report.backends)
	}
	return found
}
