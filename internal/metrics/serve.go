package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"k8s.io/klog/v2"
)

const (
	// maxConnections are open at a time; more wait in the kernel's backlog. Only root
	// and the gateway reach the socket.
	maxConnections = 8
	// receiveTimeout and maxHeader bound what a client may send.
	receiveTimeout = 5 * time.Second
	maxHeader      = 8 << 10
	// idleTimeout is how long a connection may be without a request, answerTimeout how
	// long a client may take the answer: a profile is made for up to that long.
	idleTimeout   = 10 * time.Second
	answerTimeout = time.Minute
	// maxScrapes answers at once; others get 503.
	maxScrapes = 4
	// scrapeTimeout bounds one answer.
	scrapeTimeout = 10 * time.Second
)

// Serving is what the HTTP server needs beside the metrics.
type Serving struct {
	// Ready returns why the server does not answer calls; nil: it does.
	Ready func() error
	// Profiles says whose connections may read Go's profiles, which show parts of the
	// process's memory; nil: they are not served.
	Profiles func(net.Conn) bool
}

// profilesKey is of the context of a request whose connection may read profiles.
type profilesKey struct{}

// Handler returns /metrics, /healthz and /readyz, and with Profiles /debug/pprof/.
func (m *Metrics) Handler(s Serving) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Ready()) })
	if s.Profiles != nil {
		mux.HandleFunc("/debug/pprof/", permitted(pprof.Index))
		mux.HandleFunc("/debug/pprof/profile", permitted(pprof.Profile))
		mux.HandleFunc("/debug/pprof/trace", permitted(pprof.Trace))
	}
	return mux
}

// permitted keeps profiles from those who may connect for the metrics only.
func permitted(profile http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if may, _ := r.Context().Value(profilesKey{}).(bool); !may {
			http.Error(w, "profiles are for root", http.StatusForbidden)
			return
		}
		profile(w, r)
	}
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
	server := &http.Server{Handler: m.Handler(s), MaxHeaderBytes: maxHeader, ReadTimeout: receiveTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout}
	if s.Profiles != nil {
		server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, profilesKey{}, s.Profiles(c))
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
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
