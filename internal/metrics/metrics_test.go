package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// fakeEngine answers what it is told to.
type fakeEngine struct {
	report healer.Report
	err    error
}

func (e fakeEngine) Check(context.Context, healer.Volume) (healer.Report, error) {
	return e.report, e.err
}

func (e fakeEngine) Heal(context.Context, healer.Volume) (healer.Report, error) {
	return e.report, e.err
}

func newMetrics() *Metrics {
	return New("v1", func() worker.Stats { return worker.Stats{Living: 3, Idle: 2, Abandoned: 1} })
}

func get(t *testing.T, m *Metrics, s Serving, path string) (code int, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(s).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// used returns Metrics that have counted something of everything.
func used(t *testing.T) *Metrics {
	t.Helper()
	m := newMetrics()
	sick := healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.NotMounted}}}
	ctx, loop := t.Context(), healer.WithCaller(t.Context(), healer.CallerLoop)
	v := healer.Volume{ID: "hunter2", Path: "/hunter2", Secrets: healer.Secrets{"key": "hunter2"}}
	_, _ = m.Counting(fakeEngine{}).Check(ctx, v)
	_, _ = m.Counting(fakeEngine{report: healer.Report{After: sick, Refused: []healer.Refusal{{Step: "rebind"}}}}).Check(loop, v)
	_, _ = m.Counting(fakeEngine{report: healer.Report{Before: sick, Driver: "d", Steps: []healer.Outcome{{Step: "rebind", Provider: "mounts"}}}}).Heal(ctx, v)
	_, _ = m.Counting(fakeEngine{report: healer.Report{
		Driver: "d", Before: sick, After: sick, Steps: []healer.Outcome{{Step: "replace", Provider: "mounts", Err: syscall.EPERM}}, Refused: []healer.Refusal{{Step: "cover", Rule: healer.RuleWanted}},
	}}).Heal(loop, v)
	_, _ = m.Counting(fakeEngine{err: healer.NotFound("hunter2")}).Check(ctx, v)
	_, _ = m.Counting(fakeEngine{err: healer.Failed("observe hunter2", context.DeadlineExceeded)}).Heal(ctx, v)
	m.Recovered(3*time.Second, true)
	return m
}

func TestWhatIsCounted(t *testing.T) {
	m := used(t)
	code, text := get(t, m, Serving{}, "/metrics")
	for _, line := range []string{
		`node_healer_checks_total{origin="call",outcome="healthy"} 1`,
		`node_healer_checks_total{origin="loop",outcome="abnormal"} 1`,
		`node_healer_checks_total{origin="call",outcome="not-found"} 1`,
		`node_healer_heals_total{driver="",origin="call",outcome="error"} 1`,
		`node_healer_heals_total{driver="d",origin="call",outcome="healed"} 1`,
		`node_healer_heals_total{driver="d",origin="loop",outcome="abnormal"} 1`,
		`node_healer_check_duration_seconds_count{origin="loop",outcome="abnormal"} 1`,
		`node_healer_heal_duration_seconds_count{origin="call",outcome="healed"} 1`,
		`node_healer_steps_total{driver="d",error_type="",provider="mounts",step="rebind"} 1`,
		`node_healer_steps_total{driver="d",error_type="permission",provider="mounts",step="replace"} 1`,
		`node_healer_step_refusals_total{driver="d",rule="wanted",step="cover"} 1`,
		`node_healer_errors_total{error_type="validation",kind="not-found",operation="check"} 1`,
		`node_healer_errors_total{error_type="timeout",kind="failed",operation="heal"} 1`,
		`node_healer_recovery_duration_seconds_count{by="loop"} 1`,
		`node_healer_workers{state="busy"} 1`,
		`node_healer_workers{state="idle"} 2`,
		`node_healer_workers{state="stuck"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	if code != http.StatusOK || strings.Contains(text, `rule="",step="rebind"`) || strings.Contains(text, "hunter2") {
		t.Errorf("%d: %s", code, text)
	}
}

// gaveUp is why a loop leaves a volume alone.
var gaveUp = healer.LeftAlone{Because: "terminal"}

// fakeLoop knows volumes, each of which it has seen.
type fakeLoop []healer.VolumeState

func (l fakeLoop) states(context.Context) healer.LoopState {
	for i := range l {
		l[i].Verdict = healer.Abnormal
	}
	return healer.LoopState{On: true, Volumes: l, Searched: time.Unix(900, 0), CheckedAll: true}
}

// What a loop saw before it was switched off is not shown, because nothing renews it.
func TestLoopThatIsOffHasNoSeries(t *testing.T) {
	m := newMetrics()
	off := func(ctx context.Context) healer.LoopState {
		s := fakeLoop{{Driver: "d", Left: gaveUp}}.states(ctx)
		s.On = false
		return s
	}
	m.Watch(off)
	_, text := get(t, m, Serving{}, "/metrics")
	for _, name := range []string{"volumes", "volumes_left_alone", "loop_last_search_timestamp_seconds", "loop_checked_all"} {
		if strings.Contains(text, namespace+"_"+name) {
			t.Errorf("%s is there:\n%s", name, text)
		}
	}
}

// However many drivers and reasons there are, the number of series is bounded.
func TestSeriesAreBounded(t *testing.T) {
	m := newMetrics()
	var l fakeLoop
	for i := range 1000 {
		driver := fmt.Sprint("driver-", i)
		sick := healer.HealthEntry{Status: healer.Status(fmt.Sprint("Status", i)), Reason: healer.Reason(fmt.Sprint("Reason", i))}
		l = append(l,
			healer.VolumeState{Driver: driver},
			healer.VolumeState{Driver: driver, Health: []healer.HealthEntry{sick}, Left: gaveUp},
		)
	}
	m.Watch(l.states)
	count, err := testutil.GatherAndCount(m.registry, "node_healer_volumes", "node_healer_volumes_left_alone")
	if err != nil || count > 3*(maxNames+1) {
		t.Errorf("%d series, %v", count, err)
	}
	_, text := get(t, m, Serving{}, "/metrics")
	for _, line := range []string{
		`node_healer_volumes{condition="Healthy",driver="driver-0",status="Healthy"} 1`, `node_healer_volumes{condition="other",driver="other",status="Unknown"} 936`,
		`node_healer_volumes{condition="Healthy",driver="other",status="Healthy"} 936`, `node_healer_volumes_left_alone{driver="other"} 936`,
		`node_healer_loop_last_search_timestamp_seconds 900`, `node_healer_loop_checked_all 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
}

// A vendor's provider may make the name of a step of what is in a mount table.
func TestNamesOfVendorsAreBounded(t *testing.T) {
	m := newMetrics()
	for i := range 1000 {
		name := fmt.Sprintf("reconnect \xff %d", i)
		_, _ = m.Counting(fakeEngine{report: healer.Report{
			After: healer.Diagnosis{Failures: []healer.ProviderFailure{{Provider: name}}}, Steps: []healer.Outcome{{Step: name, Provider: name}}, Refused: []healer.Refusal{{Step: name}},
		}}).Heal(t.Context(), healer.Volume{})
	}
	count, err := testutil.GatherAndCount(m.registry, "node_healer_steps_total", "node_healer_step_refusals_total", "node_healer_provider_failures_total")
	if err != nil || count > 3*(maxNames+1) {
		t.Errorf("%d series, %v", count, err)
	}
}

// The same condition counts apart by status, and a volume that a provider could not
// examine is not healthy.
func TestVolumesByStatus(t *testing.T) {
	m := newMetrics()
	entry := func(s healer.Status, r healer.Reason) []healer.HealthEntry {
		return []healer.HealthEntry{{Status: s, Reason: r}}
	}
	m.Watch(fakeLoop{
		{Driver: "d", Health: entry(healer.Degraded, healer.PathsFailed)},
		{Driver: "d", Health: entry(healer.Degraded, healer.PathsFailed)},
		{Driver: "d", Health: entry(healer.Inaccessible, healer.PathsFailed)},
		{Driver: "d", Health: entry(healer.Unknown, healer.ProviderFailed)},
	}.states)
	_, text := get(t, m, Serving{}, "/metrics")
	for _, line := range []string{
		`node_healer_volumes{condition="PathsFailed",driver="d",status="Degraded"} 2`,
		`node_healer_volumes{condition="PathsFailed",driver="d",status="Inaccessible"} 1`,
		`node_healer_volumes{condition="ProviderFailed",driver="d",status="Unknown"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
}

// The names follow Prometheus's conventions.
func TestNames(t *testing.T) {
	m := newMetrics()
	m.Watch(fakeLoop{{Driver: "d", Left: gaveUp}}.states)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	m := newMetrics()
	for _, tc := range []struct {
		path  string
		ready error
		want  int
	}{
		{"/healthz", errors.New("not yet"), http.StatusOK},
		{"/readyz", nil, http.StatusOK},
		{"/readyz", errors.New("not yet"), http.StatusServiceUnavailable},
		{"/debug/pprof/", nil, http.StatusNotFound},
		{"/", nil, http.StatusNotFound},
	} {
		if code, text := get(t, m, Serving{Ready: func() error { return tc.ready }}, tc.path); code != tc.want {
			t.Errorf("%+v: %d %s", tc, code, text)
		}
	}
}

// TestProfilesAreForSome: who may connect reads the metrics, and not therefore profiles.
func TestProfilesAreForSome(t *testing.T) {
	for _, may := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		stop := newMetrics().Serve(l, Serving{Profiles: func(c net.Conn) bool { return may && c.LocalAddr().Network() == "unix" }})
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		for _, profile := range []string{"", "heap", "trace?seconds=0.01"} {
			answer, err := (&http.Client{Transport: transport}).Get("http://node/debug/pprof/" + profile)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[may]; answer.StatusCode != want {
				t.Errorf("%q, allowed %t: %d", profile, may, answer.StatusCode)
			}
		}
		transport.CloseIdleConnections()
		if err := stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
