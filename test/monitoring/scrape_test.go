package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// prometheus is the program that make builds.
const prometheus = "../../bin/prometheus/prometheus"

// patience is how long this test waits for what takes no time.
const patience = 5 * time.Minute

// TestPrometheusScrapes starts a real Prometheus with our rules and our scrape job, but
// for the discovery: it gets every metric, and each rule can be evaluated on them.
func TestPrometheusScrapes(t *testing.T) {
	const token = "a token that the API knows"
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// As the gateway does, which asks the API.
		if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		node().ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := startPrometheus(t, address.Host, token)

	p.until("the node is scraped", "up == 1")
	for name := range series(t) {
		p.until(name, name)
	}
	for _, rule := range p.evaluated() {
		if rule.Health != "ok" || rule.State == "firing" {
			t.Errorf("a rule on a first scrape: %+v", rule)
		}
	}
}

type running struct {
	t       *testing.T
	address string
}

// startPrometheus starts it with the example's job, for one address.
func startPrometheus(t *testing.T, target, token string) running {
	t.Helper()
	home := t.TempDir()
	config := filepath.Join(home, "prometheus.yml")
	write(t, config, jobFor(t, home, target, token))
	ctx, cancel := context.WithTimeout(context.Background(), patience) // t's own ends before the clean-up
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, prometheus, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(home, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("make prometheus builds it: %v", err)
	}
	address, ended, all := make(chan string, 1), make(chan struct{}), &strings.Builder{}
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			if found := regexp.MustCompile(`msg="Listening on" .*address=(127\.0\.0\.1:\d+)`).FindStringSubmatch(lines.Text()); found != nil {
				address <- found[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("Prometheus ended with %v\n%s", err, all)
		}
	})
	select {
	case found := <-address:
		p := running{t, found}
		eventually(t, "Prometheus is ready", func() bool {
			status, _ := p.ask("/-/ready", nil)
			return status == http.StatusOK
		})
		return p
	case <-ended:
		t.Fatal("Prometheus ended")
	}
	return running{}
}

// jobFor is the example's configuration with one address instead of a discovery, and
// with intervals for a test.
func jobFor(t *testing.T, home, target, token string) string {
	t.Helper()
	raw, err := os.ReadFile(dir + "scrape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Jobs []map[string]any `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(raw, &config); err != nil || len(config.Jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(config.Jobs), err)
	}
	job := config.Jobs[0]
	delete(job, "kubernetes_sd_configs")
	delete(job, "relabel_configs")
	job["static_configs"] = []map[string]any{{"targets": []string{target}}}
	job["scrape_interval"] = "1s"
	job["authorization"].(map[string]any)["credentials_file"] = filepath.Join(home, "token")
	write(t, filepath.Join(home, "token"), token)
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": config.Jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// until waits for an expression to have a result.
func (p running) until(what, expr string) {
	p.t.Helper()
	eventually(p.t, what, func() bool {
		var answer struct {
			Error string
			Data  struct{ Result []any }
		}
		p.get("/api/v1/query", url.Values{"query": {expr}}, &answer)
		if answer.Error != "" {
			p.t.Fatalf("%s: %s", expr, answer.Error)
		}
		return len(answer.Data.Result) > 0
	})
}

type rule struct{ Name, Health, LastError, State string }

// evaluated waits until each rule was evaluated, and returns them all.
func (p running) evaluated() (all []rule) {
	p.t.Helper()
	eventually(p.t, "the rules are evaluated", func() bool {
		var answer struct {
			Data struct{ Groups []struct{ Rules []rule } }
		}
		p.get("/api/v1/rules", nil, &answer)
		if len(answer.Data.Groups) != 1 || len(answer.Data.Groups[0].Rules) == 0 {
			p.t.Fatalf("Prometheus has the rules %+v", answer)
		}
		all = answer.Data.Groups[0].Rules
		return !slices.ContainsFunc(all, func(r rule) bool { return r.Health == "unknown" })
	})
	return all
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience / 2); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (p running) get(path string, query url.Values, into any) {
	p.t.Helper()
	if _, body := p.ask(path, query); json.Unmarshal(body, into) != nil {
		p.t.Fatalf("%s: %s", path, body)
	}
}

func (p running) ask(path string, query url.Values) (status int, body []byte) {
	p.t.Helper()
	r, err := http.Get("http://" + p.address + path + "?" + query.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err = io.ReadAll(r.Body); err != nil {
		p.t.Fatal(err)
	}
	return r.StatusCode, body
}
