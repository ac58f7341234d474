package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// limits are the rows of the table of limits in performance.md. {pkg/x.name} stands for
// the value of a constant in that package, which need not be exported.
var limits = []struct{ what, limit string }{
	{
		what: "a call: fields, in bytes",
		limit: "volume_id {pkg/nodeserver.maxVolumeIDBytes}; paths {pkg/nodeserver.maxPathBytes}, " +
			"their components {pkg/nodeserver.maxComponentBytes}; secrets, volume_context and mount flags {pkg/nodeserver.maxMapBytes} each; " +
			"fs_type {pkg/nodeserver.maxFSTypeBytes}",
	},
	{
		what: "a call: messages",
		limit: "request {pkg/nodeserver.maxRequestBytes}, headers {pkg/nodeserver.maxHeaderBytes}, response {pkg/nodeserver.maxResponseBytes}, " +
			"the text `message` {pkg/nodeserver.maxMessageBytes} bytes",
	},
	{
		what: "connections; more wait",
		limit: "{pkg/nodeserver.maxConnections} to the server's own socket, {pkg/nodeserver.maxGatewayConnections} to the gateway's, " +
			"{internal/metrics.maxConnections} to that of the metrics",
	},
	{what: "calls at once", limit: "{pkg/nodeserver.maxStreams} per connection, {pkg/nodeserver.maxGatewayStreams} on the gateway's socket; more wait in the client"},
	{what: "time to connect", limit: "{pkg/nodeserver.handshakeTimeout}"},
	{
		what: "a request for the metrics",
		limit: "{internal/metrics.maxScrapes} at once; {internal/metrics.receiveTimeout} and {internal/metrics.maxHeader} to receive, " +
			"{internal/metrics.scrapeTimeout} to make",
	},
	{
		what: "gateway: connections, calls",
		limit: "{internal/gateway.maxConnections} connections, {internal/gateway.maxStreams} calls at once for each; " +
			"{internal/gateway.maxCalls} passed on at once for each verb, more wait; request {internal/gateway.maxRequestBytes}",
	},
	{
		what: "gateway: time",
		limit: "{internal/gateway.handshakeTimeout} to connect, {internal/gateway.receiveTimeout} to send a request, " +
			"{internal/gateway.callTimeout} for a call (a heal goes on), {internal/gateway.maxIdle} idle; " +
			"{internal/gateway.maxReflections} reflections at once, {internal/gateway.reflectionTimeout} each",
	},
	{
		what: "gateway: questions about tokens",
		limit: "{internal/gateway.reviewsPerSecond} a second, {internal/gateway.reviewBurst} at once; " +
			"a yes counts for {internal/gateway.allowedTTL}, a no for {internal/gateway.deniedTTL}",
	},
	{what: "gateway: metrics", limit: "{internal/gateway.maxScrapers} connections, {internal/gateway.scrapeTimeout} and {internal/gateway.maxMetricsBytes} for an answer"},
	{what: "workers", limit: "{internal/setup.maxWorkers} at once, besides those that cannot be killed; a killed one has {internal/setup.killWait} to end"},
	{
		what: "the loop: checks",
		limit: "{internal/loop.maxChecks} at once, {internal/loop.maxOfOne} of a driver; " +
			"{internal/loop.maxSlow} and {internal/loop.maxSlowOfOne} whose last took over {internal/loop.slowCheck}; " +
			"{internal/loop.checksPerSecond} begin in a second or at once; {internal/loop.maxVolumes} volumes; " +
			"{internal/node.maxFollowed} FUSE daemons are followed",
	},
	{what: "the loop: heals", limit: "{internal/loop.maxHeals} at once; {internal/loop.healsPerMinute} begin in a minute, {internal/loop.healsBurst} at once"},
	{
		what: "the API: time",
		limit: "{internal/cluster.requestTimeout} for a request; {internal/cluster.unavailableTime} until one that did not answer is asked again; " +
			"{internal/cluster.listTime} for a list",
	},
	{what: "the API: reads at once", limit: "{internal/cluster.maxPodReads} pods by name, {internal/cluster.maxParallelReads} others"},
	{
		what: "the API: a page",
		limit: "{internal/cluster.podsPerPage} pods, {internal/cluster.volumesPerPage} volumes or attachments; " +
			"after one of more than {internal/cluster.maxPageBytes} one object, then twice as many each time",
	},
	{what: "the API: remembered", limit: "claims, volumes and classes for {internal/cluster.cacheTTL}; {internal/cluster.maxPodVolumes} volumes of a pod, {internal/cluster.maxSearched} claims of a namespace"},
	{what: "the API: reports", limit: "{internal/cluster.requestQPS} requests a second, {internal/cluster.requestBurst} at once; {internal/cluster.maxPending} events wait"},
	{
		what: "controller",
		limit: "{internal/controller.podsPerPage} pods, {internal/controller.objectsPerPage} other objects in a page, one after a page of more than {internal/controller.maxPageBytes}; " +
			"an answer of {internal/controller.maxAnswerBytes}; {internal/controller.maxNodes} nodes of a job",
	},
	{
		what: "a driver, a provider",
		limit: "an answer of {pkg/healer/provider/driver.maxAnswer}, headers {pkg/healer/provider/driver.maxHeaders}; " +
			"a file of {internal/engine.maxFile}, a program's output of {internal/ops.maxOutput}",
	},
	{what: "mounts of containers that are inspected", limit: "{internal/node.maxInNamespace} in a namespace, {internal/node.maxInPod} in a pod"},
	{
		what: "the state directory",
		limit: "a record of {internal/state.recordLimit}, kept for {internal/state.recordLifetime}; an audit log of {internal/state.auditLimit}, " +
			"and the one before",
	},
	{what: "a stage of the shutdown", limit: "{internal/setup.stopTimeout}"},
}

// TestLimits compares the table of limits with the constants in the code.
func TestLimits(t *testing.T) {
	const name = "performance.md"
	const begin, end = "<!-- limits: made by `go test ./docs -args -write` -->\n", "<!-- end -->\n"
	page := read(t, name)
	before, rest, found := strings.Cut(page, begin)
	section, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal(name + " has no table of limits")
	}
	table := "| what | limit |\n|---|---|\n"
	for _, row := range limits {
		table += fmt.Sprintf("| %s | %s |\n", row.what, placeholder.ReplaceAllStringFunc(row.limit, func(text string) string {
			m := placeholder.FindStringSubmatch(text)
			return constant(t, m[1], m[2])
		}))
	}
	switch {
	case section == table:
	case *write:
		if err := os.WriteFile(name, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not as the code (go test ./docs -args -write): got\n%s\nwant\n%s", name, section, table)
	}
}

var placeholder = regexp.MustCompile(`\{([a-z/-]+)\.(\w+)\}`)

// constant returns the value of a package's constant as a person reads it.
func constant(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	exprs := map[string]ast.Expr{} // by the names of the package's constants
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, is := n.(*ast.ValueSpec); is {
				for i, value := range spec.Values {
					exprs[spec.Names[i].Name] = value
				}
			}
			return true
		})
	}
	expr := exprs[name]
	if expr == nil {
		t.Fatalf("%s has no constant %s", dir, name)
	}
	value, unit := evaluate(t, exprs, expr)
	switch {
	case unit == seconds && value%int64(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", value/int64(24*time.Hour))
	case unit == seconds:
		text := time.Duration(value).String()
		for _, zero := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(text, zero) {
				text = strings.TrimSuffix(text, zero[1:])
			}
		}
		return text
	case unit == bytes && value%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", value>>20)
	case unit == bytes:
		return fmt.Sprintf("%d KiB", value>>10)
	}
	return strconv.FormatInt(value, 10)
}

// The units of constants: those that are written with package time are seconds, those
// that are shifted are bytes.
const (
	plain = iota
	seconds
	bytes
)

// evaluate returns the value of a constant's expression, and its unit.
func evaluate(t *testing.T, exprs map[string]ast.Expr, expr ast.Expr) (value int64, unit int) {
	t.Helper()
	switch e := expr.(type) {
	case *ast.BasicLit:
		value, err := strconv.ParseInt(e.Value, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return value, plain
	case *ast.Ident:
		if exprs[e.Name] == nil {
			t.Fatalf("no constant %s", e.Name)
		}
		return evaluate(t, exprs, exprs[e.Name])
	case *ast.SelectorExpr:
		of, known := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]
		if !known {
			t.Fatalf("unknown: %s", e.Sel.Name)
		}
		return int64(of), seconds
	case *ast.BinaryExpr:
		x, unitX := evaluate(t, exprs, e.X)
		y, unitY := evaluate(t, exprs, e.Y)
		unit = max(unitX, unitY)
		switch e.Op {
		case token.MUL:
			return x * y, unit
		case token.QUO:
			return x / y, unit
		case token.ADD:
			return x + y, unit
		case token.SHL:
			return x << y, bytes
		}
	}
	t.Fatalf("no constant: %T", expr)
	return 0, plain
}
