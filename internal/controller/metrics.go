package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the controller's own.
type metrics struct {
	jobs, evictions *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	registered := promauto.With(r)
	return metrics{
		jobs: registered.NewCounterVec(prometheus.CounterOpts{
			Name: "node_healer_controller_jobs_total",
			Help: "VolumeHealJobs that ended, by mode, result and reason.",
		}, []string{"mode", "result", "reason"}),
		// Drivers are those that the settings name.
		evictions: registered.NewCounterVec(prometheus.CounterOpts{
			Name: "node_healer_controller_evictions_total",
			Help: "Evictions of a volume's pods that ended, by driver and result.",
		}, []string{"driver", "result"}),
	}
}
