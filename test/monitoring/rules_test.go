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
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

const (
	dir       = "../../deploy/monitoring/"
	rulesFile = dir + "rules.yaml"
	runbook   = "../../docs/monitoring.md"
	// interval is how often samples come and rules are evaluated in these tests.
	interval = time.Minute
)

var promQL = parser.NewParser(parser.Options{})

// alerts has Prometheus load the rules, to be evaluated on a storage.
func alerts(t *testing.T, samples storage.Storage) (*rules.Group, []*rules.AlertingRule) {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		ExternalURL: &url.URL{},
		QueryFunc:   rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000), samples),
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
			group, all := alerts(t, promqltest.LoadedStorage(t, "load 1m\n  "+strings.Join(samples, "\n  ")+"\n"))
			start := time.Unix(0, 0)
			for at := start; !at.After(start.Add(s.after)); at = at.Add(interval) {
				group.Eval(t.Context(), at)
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
			if !slices.Equal(slices.Compact(firing), s.firing) {
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

// TestRulesNameMetricsThatExist compares with what node-healer has.
func TestRulesNameMetricsThatExist(t *testing.T) {
	_, all := alerts(t, promqltest.LoadedStorage(t, ""))
	for _, alert := range all {
		exist(t, alert.Name(), alert.Query())
	}
}

// exist fails the test when an expression names a metric or a label that is not there.
func exist(t *testing.T, where string, expr parser.Expr) {
	t.Helper()
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		selector, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		if selector.Name == "up" {
			return nil // Prometheus's own
		}
		has, found := series(t)[selector.Name]
		if !found {
			t.Errorf("%s: there is no metric %s", where, selector.Name)
			return nil
		}
		for _, m := range selector.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(ofTheTarget, m.Name) && !slices.Contains(has, m.Name) {
				t.Errorf("%s: %s has no label %s", where, selector.Name, m.Name)
			}
		}
		return nil
	})
}

// ofTheTarget are labels that a scrape gives to each series.
var ofTheTarget = []string{"job", "instance", "node", "namespace", "pod"}
