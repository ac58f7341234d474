package monitoring

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/csi-addons/node-healer/pkg/api"
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
	Links  []dashboardLink `json:"links"`
	Panels []panel         `json:"panels"`
}

type dashboardLink struct {
	Title, URL string
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct{ X, Y, W, H int }
	Links       []dashboardLink `json:"links"`
	FieldConfig struct {
		Defaults struct {
			Unit       string          `json:"unit"`
			Links      []dashboardLink `json:"links"`
			Thresholds struct {
				Steps []struct{ Color string } `json:"steps"`
			} `json:"thresholds"`
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

// TestEveryPanelCanBeLimitedToADriver also wants that nothing is limited while all are chosen.
func TestEveryPanelCanBeLimitedToADriver(t *testing.T) {
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, `driver=~"$driver"`) {
				t.Errorf("%s does not heed the driver: %s", p.Title, target.Expr)
			}
		}
	}
}

// firstRow is what an operator sees first: by panel what it shows of these samples for all
// drivers, and for the driver d.
var firstRow = []struct {
	title    string
	all, ofD string
}{
	{"Broken now", "3", "2"},
	{"Degraded now", "1", "0"},
	{"Healed in 24 h", "4", "4"},
	{"Failed in 24 h", "5", "0"},
	{"Nodes silent", "2", "1"}, // n3 never had a volume of d, as far as is known; n4 never had any
	{"Given up", "1", "1"},
}

var firstRowSamples = []string{
	`up{job="node-healer",node="n1"} 1x100`,
	`up{job="node-healer",node="n2"} 1x100`,
	`up{job="node-healer",node="n3"} 1x10 0x90`,
	`up{job="node-healer",node="n4"} 0x100`,
	`node_healer_build_info{node="n1",version="v1"} 1x100`,
	`node_healer_loop_last_search_timestamp_seconds{node="n1"} 0+60x100`,
	`node_healer_volumes{node="n1",driver="d",condition="Disconnected",status="Inaccessible"} 2x100`,
	`node_healer_volumes{node="n2",driver="e",condition="NotMounted",status="Inaccessible"} 1x100`,
	`node_healer_volumes{node="n2",driver="e",condition="ProviderFailed",status="Unknown"} 1x100`,
	`node_healer_volumes{node="n3",driver="e",condition="Healthy",status="Healthy"} 7x10`,
	`node_healer_heals_total{node="n1",driver="d",origin="loop",outcome="healed"} 0x10 4x90`,
	`node_healer_heals_total{node="n1",driver="d",origin="loop",outcome="abnormal"} 0x10 9x90`,
	`node_healer_steps_total{node="n2",driver="e",provider="mounts",step="rebind",error_type="execution"} 0x10 5x90`,
	`node_healer_steps_total{node="n2",driver="e",provider="mounts",step="rebind",error_type=""} 0x10 9x90`,
	`node_healer_volumes_left_alone{node="n1",driver="d"} 1x100`,
}

// TestFirstRow evaluates its expressions as Prometheus does. Where nobody looks they show
// nothing, never a zero that looks well.
func TestFirstRow(t *testing.T) {
	d := readDashboard(t)
	samples := promqltest.LoadedStorage(t, "load 1m\n\t"+strings.Join(firstRowSamples, "\n\t"))
	nothing := promqltest.LoadedStorage(t, "")
	for i, want := range firstRow {
		p := d.Panels[i]
		if p.Title != want.title || p.Type != "stat" || p.GridPos.Y != 0 {
			t.Fatalf("panel %d is %q", i, p.Title)
		}
		if len(p.FieldConfig.Defaults.Thresholds.Steps) < 2 {
			t.Errorf("%s has no threshold", p.Title)
		}
		for _, driver := range []struct{ chosen, want string }{{".*", want.all}, {"d", want.ofD}} {
			if got := shown(t, p, samples, driver.chosen); got != driver.want {
				t.Errorf("%s of %s shows %s, not %s", p.Title, driver.chosen, got, driver.want)
			}
		}
		unwatched := ""
		if p.Title == "Nodes silent" {
			unwatched = "1"
		}
		if got := shown(t, p, nothing, ".*"); got != unwatched {
			t.Errorf("%s shows %q where nothing is scraped", p.Title, got)
		}
	}
}

// shown returns the values of a panel's first expression, rounded as it shows them.
func shown(t *testing.T, p panel, samples storage.Storage, driver string) string {
	t.Helper()
	text := strings.NewReplacer("$driver", driver, "$node", ".*").Replace(p.Targets[0].Expr)
	vector, err := queryOf(t, samples)(t.Context(), text, time.Unix(0, 0).Add(90*time.Minute))
	if err != nil {
		t.Fatal(p.Title, err)
	}
	var values []string
	for _, sample := range vector {
		values = append(values, strconv.FormatFloat(math.Round(sample.F), 'f', -1, 64))
	}
	return strings.Join(values, " ")
}

// TestDashboardLinksToPages that exist, and to their headings; the first row to an alert each.
func TestDashboardLinksToPages(t *testing.T) {
	d := readDashboard(t)
	links := d.Links
	for _, p := range d.Panels {
		links = append(links, p.Links...)
		links = append(links, p.FieldConfig.Defaults.Links...)
		if p.GridPos.Y == 0 && !slices.ContainsFunc(p.Links, func(l dashboardLink) bool { return strings.Contains(l.URL, "/monitoring.md#nodehealer") }) {
			t.Errorf("%s has no link to an alert", p.Title)
		}
	}
	const pages = "https://github.com/csi-addons/node-healer/blob/main/docs/"
	ofCondition := false
	for _, l := range links {
		if l.URL == api.ConditionsURL+"${__field.labels.condition}" {
			ofCondition = true
			continue
		}
		file, anchor, _ := strings.Cut(strings.TrimPrefix(l.URL, pages), "#")
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Errorf("%s: %v", l.Title, err)
		}
		heading := regexp.MustCompile(`(?im)^#+ ` + strings.ReplaceAll(regexp.QuoteMeta(anchor), "-", "[ -]") + `$`)
		if anchor != "" && !heading.Match(text) {
			t.Errorf("%s: %s has no heading %s", l.Title, file, anchor)
		}
	}
	if !ofCondition {
		t.Error("no panel links a condition to what it means")
	}
}
