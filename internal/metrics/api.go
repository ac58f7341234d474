package metrics

import (
	"context"

	clientmetrics "k8s.io/client-go/tools/metrics"
)

// apiResult counts the requests of client-go.
type apiResult struct{ m *Metrics }

// Increment implements client-go's ResultMetric.
func (r apiResult) Increment(_ context.Context, code, method, _ string) {
	r.m.apiRequests.WithLabelValues(method, code).Inc()
}

// CountAPIRequests has client-go, which keeps this for the whole process, report its
// requests. Only the first call in a process counts, and it has to come before the first
// request.
func (m *Metrics) CountAPIRequests() {
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: apiResult{m}})
}
