package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

var write = flag.Bool("write", false, "write the table in docs/metrics.md anew")

const page = "../../docs/metrics.md"

// TestPage compares the table in docs/metrics.md with the metrics.
func TestPage(t *testing.T) {
	m := used(t)
	m.providerFailures.WithLabelValues("mounts").Inc()
	apiResult{m}.Increment(t.Context(), "200", "GET", "")
	m.Watch(fakeLoop{{Driver: "d", Health: []healer.HealthEntry{{Status: healer.Inaccessible, Reason: healer.NotMounted}}, Left: gaveUp}}.states)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	table := "| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), namespace) {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- made by `go test ./internal/metrics -args -write` -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(string(raw), begin)
	section, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("docs/metrics.md has no table")
	}
	if *write {
		if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if section != table {
		t.Errorf("docs/metrics.md is not as the code (go test ./internal/metrics -args -write): got\n%s\nwant\n%s", section, table)
	}
}
