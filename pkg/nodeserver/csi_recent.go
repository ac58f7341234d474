package nodeserver

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

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
type recentReports struct{ byVolume *cache.LRUExpireCache }

type volumeKey struct{ driver, volumeID string }

func newRecentReports() recentReports {
	return recentReports{cache.NewLRUExpireCache(maxRecentReports)}
}

// add replaces the earlier report of the same volume.
func (r recentReports) add(k volumeKey, backends []network.Health) {
	r.byVolume.Add(k, backends, recentFor)
}

// backends returns, volume by volume, what the reports that still count show.
func (r recentReports) backends() [][]network.Health {
	var found [][]network.Health
	for _, k := range r.byVolume.Keys() {
		if report, kept := r.byVolume.Get(k); kept {
			found = append(found, report.([]network.Health))
		}
	}
	return found
}
