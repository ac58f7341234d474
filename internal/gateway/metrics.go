package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
)

const (
	// metricsPath is the nonResourceURL that a role has to allow with the verb get.
	metricsPath = "/metrics"
	// maxMetricsBytes bounds an answer of the server, which has some 100 KiB.
	maxMetricsBytes = 8 << 20
	// scrapeTimeout bounds one request, answer included.
	scrapeTimeout = 15 * time.Second
	// maxScrapers are connected at a time.
	maxScrapers = 16
)

// Metrics passes the server's metrics on to callers that may read them. Make it with
// NewMetrics.
type Metrics struct {
	callers *Callers
	server  *http.Client
	http    *http.Server
}

// NewMetrics returns Metrics that asks the server at a socket "unix:///path".
func NewMetrics(socket string, callers *Callers) *Metrics {
	m := &Metrics{callers: callers, server: &http.Client{
		Timeout: scrapeTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix://"))
			},
			DisableCompression: true,
			MaxIdleConns:       1,
			IdleConnTimeout:    maxIdle,
		},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+metricsPath, m.pass)
	// Kubelet's probes have no token, and learn nothing but that the process answers.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", m.ready)
	m.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: handshakeTimeout, ReadTimeout: scrapeTimeout, WriteTimeout: scrapeTimeout,
		IdleTimeout: maxIdle, MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(&serverLog{failed: rate.Sometimes{Interval: refusalsGap}}, "", 0),
	}
	return m
}

// serverLog takes what http.Server says: panics, and a line for each connection that fails,
// which any client can make.
type serverLog struct{ failed rate.Sometimes }

func (s *serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.HasPrefix(text, "http: panic serving ") {
		klog.InfoS("A request for the metrics failed", keyError, text)
	} else {
		s.failed.Do(func() { klog.InfoS("Connection refused", keyError, printable.Line(text, maxTextBytes)) })
	}
	return len(line), nil
}

// Run serves on the listener, which it closes, until ctx ends.
func (m *Metrics) Run(ctx context.Context, l net.Listener, config *tls.Config) error {
	served := make(chan error, 1)
	go func() { served <- m.http.Serve(tls.NewListener(netutil.LimitListener(l, maxScrapers), config)) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := m.http.Shutdown(ending)
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	m.server.CloseIdleConnections()
	return err
}

// pass answers with the server's metrics.
func (m *Metrics) pass(w http.ResponseWriter, r *http.Request) {
	// Prometheus has one token for all that it reads, which is for the API server.
	if _, err := m.callers.authorize(r.Context(), r.Header.Values("Authorization"), nil, authorizer.AttributesRecord{Verb: "get", Path: metricsPath}); err != nil {
		refusals.Do(func() {
			klog.InfoS("Caller refused", keySource, r.RemoteAddr, keyMethod, metricsPath, keyError, err.Error())
		})
		refuse(w, err)
		return
	}
	answer, err := m.ask(r.Context(), metricsPath)
	if err != nil {
		klog.ErrorS(err, "Cannot ask the server for its metrics")
		http.Error(w, "the server of this node does not answer", http.StatusBadGateway)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(answer.Body, maxMetricsBytes))
}

// refuse answers with an error of authorize. That the API did not answer is no fault of the
// caller: 401 and 403 would tell its operator to replace a good token or role.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusUnauthorized
	switch {
	case isUnanswered(err), errors.Is(err, errMayNotAsk):
		code = http.StatusServiceUnavailable
	case errors.As(err, new(forbiddenError)):
		code = http.StatusForbidden
	default:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, err.Error(), code)
}

// ready says whether the server of this node can heal, and nothing of why not.
func (m *Metrics) ready(w http.ResponseWriter, r *http.Request) {
	answer, err := m.ask(r.Context(), "/readyz")
	if err == nil {
		_ = answer.Body.Close()
	}
	if err != nil || answer.StatusCode != http.StatusOK {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (m *Metrics) ask(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server"+path, nil)
	if err != nil {
		return nil, err
	}
	return m.server.Do(req)
}
