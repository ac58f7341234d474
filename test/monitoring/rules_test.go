package monitoring

import (
	"context"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"

	"github.com/csi-addons/node-healer/pkg/api"
)

const (
	dir       = "../../deploy/monitoring/"
	rulesFile = dir + "rules.yaml"
	runbook   = "../../docs/monitoring.md"
	// interval is how often samples come and rules are evaluated in these tests.
	interval = time.Minute
)

var promQL = parser.NewParser(parser.Options{})

// queryOf evaluates expressions on a storage.
func queryOf(t *testing.T, samples storage.Storage) rules.QueryFunc {
	t.Helper()
	return rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000), samples)
}

// alerts has Prometheus load the rules, to be evaluated on a storage.
func alerts(t *testing.T, samples storage.Storage) (*rules.Group, []*rules.AlertingRule) {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		ExternalURL: &url.URL{},
		QueryFunc:   queryOf(t, samples),
		NotifyFunc:  func(context.Context, string, ...*rules.Alert) {},
		Appendable:  samples,
		Queryable:   samples,
		Parser:      promQL,
	})
	groups, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, rulesFile)
	if len(errs) > 0 || len(groups) != 1 {
		t.Fatalf("%d groups of rules, %v", len(groups), errs)
	}
	group := slices.Collect(maps.Values(groups))[0]
	var all []*rules.AlertingRule
	for _, rule := range group.Rules() {
		alert, is := rule.(*rules.AlertingRule)
		if !is {
			t.Fatalf("%s is no alert", rule.Name())
		}
		alert.SetRestored(true) // there was no Prometheus before
		all = append(all, alert)
	}
	return group, all
}

// TestAlertsSayWhatToDo wants of each alert a severity, two texts, and a section of the
// runbook.
func TestAlertsSayWhatToDo(t *testing.T) {
	page, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	_, all := alerts(t, promqltest.LoadedStorage(t, ""))
	names := map[string]bool{}
	for _, alert := range all {
		names[alert.Name()] = true
		severity := "warning"
		if alert.Labels().Get("severity") == "critical" {
			severity = "page"
		}
		if got := alert.Labels().Get("severity"); got != "critical" && got != "warning" {
			t.Errorf("%s has the severity %q", alert.Name(), got)
		}
		for _, name := range []string{"summary", "description"} {
			if alert.Annotations().Get(name) == "" {
				t.Errorf("%s has no %s", alert.Name(), name)
			}
		}
		link := alert.Annotations().Get("runbook_url")
		if file, anchor, _ := strings.Cut(link, "#"); !strings.HasSuffix(file, "/docs/monitoring.md") || anchor != strings.ToLower(alert.Name()) {
			t.Errorf("%s: the runbook is %q", alert.Name(), link)
		}
		if strings.Contains(alert.Query().String(), "by (driver, condition, node)") && alert.Annotations().Get("condition_url") != api.ConditionsURL+"{{ $labels.condition }}" {
			t.Errorf("%s: the condition is explained at %q", alert.Name(), alert.Annotations().Get("condition_url"))
		}
		if !regexp.MustCompile(`(?m)^\| \[` + alert.Name() + `\]\(#` + strings.ToLower(alert.Name()) + `\) \| ` + severity + ` \|`).Match(page) {
			t.Errorf("%s: the page's table does not say %q", alert.Name(), severity)
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(string(page), -1) {
		if !names[section[1]] {
			t.Errorf("the page tells what to do for %s, which is no alert", section[1])
		}
		delete(names, section[1])
	}
	for name := range names {
		t.Errorf("%s has no section in the page", name)
	}
}

// TestAlerts has Prometheus evaluate the rules on samples, each minute.
func TestAlerts(t *testing.T) {
	tested := map[string][2]int{}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			samples := s.samples
			if another := `up{job="node-healer",node="another"}`; !strings.HasPrefix(samples[0], another) {
				samples = append(slices.Clone(samples), another+" 1x100")
			}
			for _, line := range samples {
				isServed(t, line)
			}
			stored := promqltest.LoadedStorage(t, "load 1m\n  "+strings.Join(samples, "\n  ")+"\n")
			group, all := alerts(t, stored)
			query, start, near := queryOf(t, stored), time.Unix(0, 0), false
			for at := start; !at.After(start.Add(s.after)); at = at.Add(interval) {
				group.Eval(t.Context(), at)
				for _, alert := range all {
					if alert.Name() == s.almost {
						near = isNear(t, alert, query, at) || near
					}
				}
			}
			if s.almost != "" && !near {
				t.Errorf("%s was never pending, and its expression had no value", s.almost)
			}
			var firing []string
			for _, alert := range all {
				if err := alert.LastError(); err != nil {
					t.Errorf("%s: %v", alert.Name(), err)
				}
				for _, a := range alert.ActiveAlerts() {
					if a.State != rules.StateFiring {
						continue
					}
					firing = append(firing, alert.Name())
					if text := a.Annotations.Get("summary") + a.Annotations.Get("description"); strings.Contains(text, "<no value>") || strings.Contains(text, "error expanding") {
						t.Errorf("%s says %s", alert.Name(), text)
					}
				}
			}
			if firing = slices.Compact(firing); !slices.Equal(firing, s.firing) {
				t.Errorf("firing %q, want %q", firing, s.firing)
			}
		})
		for _, name := range s.firing {
			tested[name] = [2]int{tested[name][0] + 1, tested[name][1]}
		}
		if s.almost != "" {
			tested[s.almost] = [2]int{tested[s.almost][0], tested[s.almost][1] + 1}
		}
	}
	_, all := alerts(t, promqltest.LoadedStorage(t, ""))
	for _, alert := range all {
		if n := tested[alert.Name()]; n[0] == 0 || n[1] == 0 {
			t.Errorf("%s: a scene in which it fires and one in which it almost does are wanted, there are %v", alert.Name(), n)
		}
	}
}

// isServed fails the test when a scene's samples are not of a metric that our node serves,
// with just the labels that it has there and those that the scrape adds.
func isServed(t *testing.T, line string) {
	t.Helper()
	all, _, err := promQL.ParseSeriesDesc(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	name := all.Get(model.MetricNameLabel)
	wants, found := series(t)[name]
	if !found && name != "up" {
		t.Errorf("%s: there is no metric %s", line, name)
	}
	has := labelSet{}
	all.Range(func(l labels.Label) { has[l.Name] = l.Name != model.MetricNameLabel })
	for _, label := range wants {
		if !has[label] && !strings.Contains(line, label+`=""`) {
			t.Errorf("%s has no label %s", line, label)
		}
	}
	for label, is := range has.without(slices.Concat(wants, ofTheTarget)...) {
		if is {
			t.Errorf("%s: %s has no label %s", line, name, label)
		}
	}
}

// isNear reports whether an alert is pending, or what its expression compares with a
// threshold is above zero. One that fires has not only been near.
func isNear(t *testing.T, alert *rules.AlertingRule, query rules.QueryFunc, at time.Time) bool {
	t.Helper()
	switch alert.State() {
	case rules.StateFiring:
		t.Errorf("%s fires after %s", alert.Name(), at.Sub(time.Unix(0, 0)))
		return false
	case rules.StatePending:
		return true
	}
	compares, is := alert.Query().(*parser.BinaryExpr)
	if !is || !compares.Op.IsComparisonOperator() {
		return false
	}
	values, err := query(t.Context(), compares.LHS.String(), at)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(values, func(s promql.Sample) bool { return s.F > 0 })
}

// TestRulesNameMetricsThatExist compares the rules and their texts with what node-healer
// has.
func TestRulesNameMetricsThatExist(t *testing.T) {
	_, all := alerts(t, promqltest.LoadedStorage(t, ""))
	for _, alert := range all {
		var texts []string
		alert.Annotations().Range(func(l labels.Label) { texts = append(texts, l.Value) })
		exist(t, alert.Name(), alert.Query(), regexp.MustCompile(`\$labels\.(\w+)`), texts...)
	}
}
