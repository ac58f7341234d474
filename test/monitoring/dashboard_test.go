package monitoring

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// dashboard is what we use of Grafana's format.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
		// Legend names the labels of the expression's result.
		Legend string `json:"legendFormat"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	raw, err := os.ReadFile(dir + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboardNamesMetricsThatExist parses each expression as Prometheus does.
func TestDashboardNamesMetricsThatExist(t *testing.T) {
	d := readDashboard(t)
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		for _, query := range regexp.MustCompile(`label_values\((\w+), *(\w+)\)`).FindAllStringSubmatch(string(v.Query), -1) {
			expr, err := promQL.ParseExpr(query[1] + `{` + query[2] + `!=""}`)
			if err != nil {
				t.Fatalf("$%s: %v", v.Name, err)
			}
			exist(t, "$"+v.Name, expr, nil)
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			text := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(text, -1) {
				if !variables[v[1]] {
					t.Errorf("%s: the dashboard has no variable %s", p.Title, v[0])
				}
			}
			expr, err := promQL.ParseExpr(text)
			if err != nil {
				t.Errorf("%s: %v", p.Title, err)
				continue
			}
			exist(t, p.Title, expr, regexp.MustCompile(`\{\{ *(\w+) *\}\}`), target.Legend)
		}
	}
}

// TestDashboardIsReadable wants a title, a unit and a place for each panel.
func TestDashboardIsReadable(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || len(d.Panels) == 0 {
		t.Fatalf("a dashboard %q %q with %d panels", d.UID, d.Title, len(d.Panels))
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: the id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %d %q lacks a title, a description, a unit or an expression", p.ID, p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies on %q, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
