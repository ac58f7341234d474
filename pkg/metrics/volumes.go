package metrics

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxNames bounds the values of a label that comes from the cluster.
	maxNames = 64
	// other stands for values beyond that, and for reasons that are not known.
	other = "other"
	// healthy is the status and the condition of a volume with which nothing is wrong.
	healthy = "Healthy"
)

// names are the first values that were met.
type names struct {
	mu   sync.Mutex
	kept map[string]bool
}

func newNames() *names { return &names{kept: map[string]bool{}} }

// bounded returns a name, or other once there are too many.
func (n *names) bounded(name string) string {
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

// Watched is one volume as the loop last saw it.
type Watched struct {
	Driver string
	// Health is what is wrong with it; none: healthy.
	Health []healer.HealthEntry
	// Left is whether the loop tries no more heals of it.
	Left bool
}

// LoopState is what the node's own loop knows.
type LoopState struct {
	Volumes []Watched
	// OpenBreakers counts the backends whose heals are held back.
	OpenBreakers int
	// Searched is when the loop last listed the volumes, before the first time when it
	// started.
	Searched time.Time
}

// Loop tells what the node's own loop knows.
type Loop interface {
	// Watched returns it, and false while the loop is off, as nothing renews it then.
	Watched(ctx context.Context) (s LoopState, on bool)
}

// Watch adds what the loop knows.
func (m *Metrics) Watch(l Loop) error {
	return m.register(watched{
		m: m, loop: l,
		volumes:  prometheus.NewDesc(namespace+"_volumes", "Volumes of this node as the loop last saw them. One with several conditions counts for each, with the worst status of each.", []string{labelDriver, labelCondition, labelStatus}, nil),
		left:     prometheus.NewDesc(namespace+"_volumes_left_alone", "Sick volumes that the loop tries no more to heal until something changes.", []string{labelDriver}, nil),
		breakers: prometheus.NewDesc(namespace+"_breakers_open", "Backends of which many volumes are sick, so that heals are tried one after the other.", nil, nil),
		searched: prometheus.NewDesc(namespace+"_loop_last_search_timestamp_seconds", "When the loop last listed the volumes of this node, before the first time when it started.", nil, nil),
	})
}

type watched struct {
	m                                 *Metrics
	loop                              Loop
	volumes, left, breakers, searched *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (w watched) Describe(to chan<- *prometheus.Desc) {
	to <- w.volumes
	to <- w.left
	to <- w.breakers
	to <- w.searched
}

// Collect implements prometheus.Collector.
func (w watched) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout/2)
	defer cancel()
	now, on := w.loop.Watched(ctx)
	if !on {
		return
	}
	type series struct{ driver, condition, status string }
	counts, left := map[series]int{}, map[string]int{}
	for _, v := range now.Volumes {
		driver := w.m.drivers.bounded(v.Driver)
		if len(v.Health) == 0 {
			counts[series{driver, healthy, healthy}]++
		}
		for _, e := range v.Health {
			counts[series{driver, w.m.knownReason(e.Reason), knownStatus(e.Status)}]++
		}
		if v.Left {
			left[driver]++
		}
	}
	for s, count := range counts {
		to <- prometheus.MustNewConstMetric(w.volumes, prometheus.GaugeValue, float64(count), s.driver, s.condition, s.status)
	}
	for driver, count := range left {
		to <- prometheus.MustNewConstMetric(w.left, prometheus.GaugeValue, float64(count), driver)
	}
	to <- prometheus.MustNewConstMetric(w.breakers, prometheus.GaugeValue, float64(now.OpenBreakers))
	to <- prometheus.MustNewConstMetric(w.searched, prometheus.GaugeValue, float64(now.Searched.UnixNano())/float64(time.Second))
}

func (m *Metrics) knownReason(r healer.Reason) string {
	if r == healer.ProviderFailed || r == healer.CheckUnanswered || slices.Contains(m.cfg.Reasons, r) {
		return string(r)
	}
	return other
}

func knownStatus(s healer.Status) string {
	if s.Severity() < 0 {
		s = healer.Unknown
	}
	return string(s)
}
