package monitoring

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/csi-addons/node-healer/internal/metrics"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// node serves the metrics of a node on which everything happened once that is counted: a
// metric with labels shows only then. What they say now is well, but for one volume.
// There is one, because client-go takes only the first that counts its requests.
var node = sync.OnceValue(func() http.Handler {
	m := metrics.New("v1.2.3", func() worker.Stats { return worker.Stats{Living: 2, Idle: 2, Started: 7} })
	m.Watch(oneSick)
	ctx := healer.WithCaller(context.Background(), healer.CallerLoop)
	engine := m.Counting(answers{})
	for _, do := range []func(context.Context, healer.Volume) (healer.Report, error){engine.Check, engine.Heal} {
		for _, id := range []string{"answers", "fails"} {
			_, _ = do(ctx, healer.Volume{ID: id})
		}
	}
	m.Recovered(time.Minute, true)
	m.CountAPIRequests()
	clientmetrics.RequestResult.Increment(ctx, "200", "GET", "")
	return m.Handler(metrics.Serving{Ready: func() error { return nil }})
})

// oneSick is what a loop knows that has a sick volume among healthy ones.
func oneSick(context.Context) healer.LoopState {
	sick := healer.VolumeState{Driver: "d", Health: []healer.HealthEntry{{Status: healer.Degraded, Reason: healer.OutOfSpace}}, Left: healer.LeftAlone{Because: "terminal"}}
	healthy := healer.VolumeState{Driver: "d", Verdict: healer.Healthy}
	return healer.LoopState{On: true, Volumes: []healer.VolumeState{healthy, healthy, sick}, Searched: time.Now()}
}

// answers is an engine that answers for one volume, and fails for others.
type answers struct{}

// Check implements healer.Engine.
func (answers) Check(_ context.Context, v healer.Volume) (healer.Report, error) {
	if v.ID == "answers" {
		return healer.Report{}, nil
	}
	return healer.Report{After: healer.Diagnosis{Failures: []healer.ProviderFailure{{Provider: "driver"}}}}, errors.New("no answer")
}

// Heal implements healer.Engine.
func (a answers) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	r, err := a.Check(ctx, v)
	r.Steps = []healer.Outcome{{Step: "replace", Provider: "mounts", Err: errors.New("failed")}, {Step: "rebind", Provider: "mounts"}}
	r.Refused = []healer.Refusal{{Step: "cover", Rule: healer.RuleWanted}}
	return r, err
}

// series returns the names that Prometheus has after a scrape of our node, each with its
// labels.
func series(t *testing.T) map[string][]string {
	t.Helper()
	answer := httptest.NewRecorder()
	node().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for name, family := range families {
		var labels []string
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, pair.GetName())
		}
		switch family.GetType() {
		case dto.MetricType_HISTOGRAM:
			all[name+"_bucket"] = append([]string{"le"}, labels...)
			fallthrough
		case dto.MetricType_SUMMARY:
			all[name+"_sum"], all[name+"_count"] = labels, labels
		default:
			all[name] = labels
		}
	}
	return all
}
