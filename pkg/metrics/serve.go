package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
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
	// long a client may take the answer.
	idleTimeout   = 10 * time.Second
	answerTimeout = time.Minute
	// maxScrapes answers at once; others get 503.
	maxScrapes = 4
	// scrapeTimeout bounds one answer.
	scrapeTimeout = 10 * time.Second
)

// Handler returns /metrics, /healthz and /readyz. ready returns why the server does not
// answer calls; nil: it does.
func (m *Metrics) Handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
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
func (m *Metrics) Serve(l net.Listener, ready func() error) (stop func(context.Context) error) {
	server := &http.Server{Handler: m.Handler(ready), MaxHeaderBytes: maxHeader, ReadTimeout: receiveTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout}
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
