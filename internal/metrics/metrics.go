// Package metrics counts what the server does and finds, and serves that to Prometheus on a
// unix socket. No label holds a volume's name or anything else that a request brings: each
// has a bounded number of values. For what happened to one volume see the log and the
// audit log.
package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/csi-addons/node-healer/internal/worker"
)

const namespace = "node_healer"

// originLoop is the value of labelOrigin, and of labelBy, for what the loop does.
const originLoop = "loop"

// The labels, each with a bounded number of values.
const (
	// labelOrigin is who asked: "call" or "loop".
	labelOrigin = "origin"
	// labelOutcome is a verdict, "not-found", or "error".
	labelOutcome   = "outcome"
	labelStep      = "step"
	labelErrorType = "error_type"
	labelProvider  = "provider"
	labelRule      = "rule"
	labelDriver    = "driver"
	// labelCondition is a reason, or "Healthy".
	labelCondition = "condition"
	// labelStatus is a status of healer, or "Healthy".
	labelStatus    = "status"
	labelState     = "state"
	labelVerb      = "verb"
	labelCode      = "code"
	labelOperation = "operation"
	labelKind      = "kind"
	// labelBy is what ended a sickness: "loop", a heal of the loop's, or "other".
	labelBy = "by"
)

// The buckets of durations, in seconds: a healthy check takes a millisecond, one that
// hangs as long as the probe timeout, a heal at most --heal-timeout.
var (
	durationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	recoveryBuckets = []float64{.1, .5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600}
)

// Metrics counts. Make it with New.
type Metrics struct {
	registry *prometheus.Registry
	// drivers are those of the cluster; vendors are the names of providers and steps, and reasons those of
	// conditions, which a vendor's providers may choose anew for each volume.
	drivers, vendors, reasons names

	checks, heals             *prometheus.CounterVec
	checkSeconds, healSeconds *prometheus.HistogramVec
	steps                     *prometheus.CounterVec
	refusals                  *prometheus.CounterVec
	providerFailures          *prometheus.CounterVec
	errors                    *prometheus.CounterVec
	recovery                  *prometheus.HistogramVec
	apiRequests               *prometheus.CounterVec
}

// New returns Metrics that have counted nothing; docs/metrics.md lists them. stats returns the state
// of the worker processes.
func New(version string, stats func() worker.Stats) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), drivers: newNames(), vendors: newNames(), reasons: newNames()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	made := promauto.With(m.registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return made.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: durationBuckets}, labels)
	}
	m.checks = counter("checks_total", "Checks that ended, by what they showed.", labelOrigin, labelOutcome)
	m.heals = counter("heals_total", "Heals that ended, by what they showed; healthy: there was nothing to heal.", labelDriver, labelOrigin, labelOutcome)
	m.checkSeconds = seconds("check_duration_seconds", "How long checks took.", labelOrigin, labelOutcome)
	m.healSeconds = seconds("heal_duration_seconds", "How long heals took.", labelOrigin, labelOutcome)
	m.steps = counter("steps_total", "Heal steps that ended; an empty error_type is success.", labelDriver, labelProvider, labelStep, labelErrorType)
	m.refusals = counter("step_refusals_total", "Heal steps that would have helped and were refused, by the rule that did.", labelDriver, labelStep, labelRule)
	m.providerFailures = counter("provider_failures_total", "Storage providers that could not examine a volume.", labelProvider)
	m.errors = counter("errors_total", "Checks and heals that had no answer, by the kind of error.", labelOperation, labelKind, labelErrorType)
	m.recovery = made.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "recovery_duration_seconds", Buckets: recoveryBuckets,
		Help: "Time from the check of the loop that found what a step could heal, or else that a volume is abnormal, to the answer that this is over, by what ended it.",
	}, []string{labelBy})
	m.apiRequests = counter("api_requests_total", "Requests to the Kubernetes API that had an answer or failed, by HTTP verb and code.", labelVerb, labelCode)
	made.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version of the server and of Go.",
	}, []string{"version", "goversion"}).WithLabelValues(version, runtime.Version()).Set(1)
	workers := func(state string, count func() int) {
		made.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "workers", Help: "Worker processes: busy, idle, or stuck in the kernel and abandoned.", ConstLabels: prometheus.Labels{labelState: state},
		}, func() float64 { return float64(count()) })
	}
	workers("busy", func() int { s := stats(); return s.Living - s.Idle })
	workers("idle", func() int { return stats().Idle })
	workers("stuck", func() int { return stats().Abandoned })
	return m
}

// Recovered counts a volume that the loop found healthy again: healed by itself, or by a
// call, by its driver or because what was wrong has passed.
func (m *Metrics) Recovered(after time.Duration, healed bool) {
	by := "other"
	if healed {
		by = originLoop
	}
	m.recovery.WithLabelValues(by).Observe(after.Seconds())
}
