package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

const (
	// headerTimeout and maxHeader bound what a client may send; only root and the
	// gateway reach the socket.
	headerTimeout = 5 * time.Second
	maxHeader     = 8 << 10
	// maxScrapes answers at once; others get 503.
	maxScrapes = 4
	// scrapeTimeout bounds one answer.
	scrapeTimeout = 10 * time.Second
)

// Serving is what the HTTP server needs beside the metrics.
type Serving struct {
	// Ready returns why the server does not answer calls; nil: it does.
	Ready func() error
	// Pprof adds Go's profiles.
	Pprof bool
}

// Handler returns /metrics, /healthz and /readyz, and with Pprof /debug/pprof/.
func (m *Metrics) Handler(s Serving) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Ready()) })
	if s.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// Serve answers on a listener, which it closes, until stop is called.
func (m *Metrics) Serve(l net.Listener, s Serving) (stop func(context.Context) error) {
	server := &http.Server{Handler: m.Handler(s), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "The metrics are not served any more")
		}
	}()
	return func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		<-ended
		return err
	}
}
