package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
)

// scraped serves the metrics of a server behind a socket, and returns how to get a path.
func scraped(t *testing.T, server http.HandlerFunc) func(path, authorization string) (answer *http.Response, text string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	if server != nil {
		l, err := net.Listen("unix", socket)
		must(t, err)
		behind := &http.Server{Handler: server} //nolint:gosec // a test's
		go func() { _ = behind.Serve(l) }()
		t.Cleanup(func() { _ = behind.Close() })
	}
	may := rights(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == rightsOutage {
			return fakeRights(ctx, a)
		}
		if a.IsResourceRequest() || a.GetPath() != "/metrics" || a.GetVerb() != "get" || a.GetUser().GetName() != checking {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	callers := &Callers{node: "node-1", tokens: authenticator.TokenFunc(fakeTokens), rights: may}
	g, err := New(Config{Socket: "unix://" + socket, Callers: callers})
	must(t, err)
	m := NewMetrics("unix://"+socket, callers)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, l, g.TLSConfig()) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
		must(t, g.server.Close())
	})
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // self-signed
	t.Cleanup(transport.CloseIdleConnections)
	return func(path, authorization string) (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+path, nil)
		must(t, err)
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		answer, err := (&http.Client{Transport: transport}).Do(req)
		must(t, err)
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer, string(text)
	}
}

// Only a caller whose role allows it reads the metrics; kubelet's probes need no token.
func TestMetrics(t *testing.T) {
	get := scraped(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the token was passed on")
		}
		_, _ = io.WriteString(w, "asked for "+r.URL.Path)
	})
	for _, tc := range []struct {
		path, authorization string
		code                int
		text                string
	}{
		{path: "/metrics", authorization: "Bearer " + checking, code: http.StatusOK, text: "asked for /metrics"},
		{path: "/metrics", authorization: "Bearer " + nothing, code: http.StatusForbidden, text: nothing + " may not get /metrics"},
		{path: "/metrics", authorization: "Bearer made-up", code: http.StatusUnauthorized, text: "[redacted]"},
		{path: "/metrics", code: http.StatusUnauthorized, text: "no bearer token"},
		// Whether the token is good is not known: 401 would have it replaced.
		{path: "/metrics", authorization: "Bearer outage", code: http.StatusServiceUnavailable, text: "try again"},
		{path: "/metrics", authorization: "Bearer " + rightsOutage, code: http.StatusServiceUnavailable, text: "try again"},
		{path: "/metrics", authorization: "Bearer denied", code: http.StatusServiceUnavailable, text: "does not let the gateway ask"},
		{path: "/healthz", code: http.StatusOK, text: "ok"},
		{path: "/readyz", code: http.StatusOK, text: "ok"},
		{path: "/debug/pprof/", authorization: "Bearer " + checking, code: http.StatusNotFound},
		{path: "/metrics/../debug/pprof/heap", authorization: "Bearer " + checking, code: http.StatusNotFound},
	} {
		answer, text := get(tc.path, tc.authorization)
		if answer.StatusCode != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s %s: %d %q, want %d %q", tc.path, tc.authorization, answer.StatusCode, text, tc.code, tc.text)
		}
	}
}

func TestMetricsOfAServerThatIsGone(t *testing.T) {
	get := scraped(t, nil)
	if answer, text := get("/metrics", "Bearer "+checking); answer.StatusCode != http.StatusBadGateway || strings.Contains(text, "/") {
		t.Errorf("%d %q", answer.StatusCode, text)
	}
	if answer, _ := get("/readyz", ""); answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d", answer.StatusCode)
	}
	if answer, _ := get("/healthz", ""); answer.StatusCode != http.StatusOK {
		t.Errorf("%d", answer.StatusCode)
	}
}

// Whoever reaches the port can fail at TLS as often as they like, and fills no log by that.
func TestFailedHandshakesFillNoLog(t *testing.T) {
	var logged bytes.Buffer
	t.Cleanup(klog.CaptureState().Restore)
	klog.LogToStderr(false)
	klog.SetOutput(&logged)
	standard := log.Writer()
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(standard) })
	get := scraped(t, nil)
	answer, _ := get("/healthz", "")
	begun := time.Now()
	for range 20 {
		c, err := net.Dial("tcp", answer.Request.URL.Host)
		must(t, err)
		_, err = c.Write([]byte("no TLS at all\n"))
		must(t, err)
		_, _ = io.ReadAll(c) // until it is closed, after it was logged
		must(t, c.Close())
	}
	klog.Flush()
	text := logged.String()
	lines, most := strings.Count(text, "\n"), 1+int(time.Since(begun)/refusalsGap)
	if lines > most || lines != strings.Count(text, "Connection refused") || lines == 0 {
		t.Errorf("logged, where %d lines are allowed:\n%s", most, text)
	}
}
