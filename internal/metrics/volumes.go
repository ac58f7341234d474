package metrics

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxNames bounds the values of a label that comes from the cluster or a vendor.
	maxNames = 64
	// other stands for values beyond that.
	other = "other"
	// healthy is the status and the condition of a volume with which nothing is wrong.
	healthy = "Healthy"
)

// names are the first values that were met.
type names struct {
	mu   sync.Mutex
	kept map[string]bool
}

func newNames() names { return names{kept: map[string]bool{}} }

// bounded returns a name, or other once there are too many. Prometheus's package panics on what
// is no UTF-8, which would end the server where the loop checks.
func (n *names) bounded(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept[name] {
		return name
	}
	if len(n.kept) >= maxNames {
		return other
	}
	n.kept[name] = true
	return name
}

// Watch adds what the loop knows.
func (m *Metrics) Watch(states func(context.Context) healer.LoopState) {
	m.registry.MustRegister(watched{
		m: m, states: states,
		volumes:  prometheus.NewDesc(namespace+"_volumes", "Volumes of this node as the loop last saw them. One with several conditions counts for each, with the worst status of each.", []string{labelDriver, labelCondition, labelStatus}, nil),
		left:     prometheus.NewDesc(namespace+"_volumes_left_alone", "Sick volumes that the loop tries no more to heal until something changes.", []string{labelDriver}, nil),
		searched: prometheus.NewDesc(namespace+"_loop_last_search_timestamp_seconds", "When the loop last listed the volumes of this node, before the first time when it started.", nil, nil),
		all:      prometheus.NewDesc(namespace+"_loop_checked_all", "1 once the loop has checked all volumes since it started, else 0.", nil, nil),
	})
}

type watched struct {
	m                            *Metrics
	states                       func(context.Context) healer.LoopState
	volumes, left, searched, all *prometheus.Desc
}

func (w watched) Describe(to chan<- *prometheus.Desc) {
	to <- w.volumes
	to <- w.left
	to <- w.searched
	to <- w.all
}

func (w watched) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout/2)
	defer cancel()
	now := w.states(ctx)
	if !now.On {
		return
	}
	type series struct{ driver, condition, status string }
	counts, left := map[series]int{}, map[string]int{}
	for _, v := range now.Volumes {
		if v.Verdict == "" && len(v.Health) == 0 {
			continue // not seen yet
		}
		driver := w.m.drivers.bounded(v.Driver)
		if len(v.Health) == 0 {
			counts[series{driver, healthy, healthy}]++
		}
		for _, e := range v.Health {
			counts[series{driver, w.m.reasons.bounded(string(e.Reason)), knownStatus(e.Status)}]++
		}
		if v.Left != (healer.LeftAlone{}) {
			left[driver]++
		}
	}
	for s, count := range counts {
		to <- prometheus.MustNewConstMetric(w.volumes, prometheus.GaugeValue, float64(count), s.driver, s.condition, s.status)
	}
	for driver, count := range left {
		to <- prometheus.MustNewConstMetric(w.left, prometheus.GaugeValue, float64(count), driver)
	}
	all := 0.0
	if now.CheckedAll {
		all = 1
	}
	to <- prometheus.MustNewConstMetric(w.all, prometheus.GaugeValue, all)
	to <- prometheus.MustNewConstMetric(w.searched, prometheus.GaugeValue, float64(now.Searched.UnixNano())/float64(time.Second))
}

func knownStatus(s healer.Status) string {
	if s.Severity() < 0 {
		s = healer.Unknown
	}
	return string(s)
}
