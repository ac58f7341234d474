package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/csi-addons/node-healer/test/harness"
)

// Proxy stands between a server and its API. It counts requests, and can hold back
// what watches bring, as if the server were the last to hear of it, while all other
// questions are answered; or everything, as if the API were away.
type Proxy struct {
	// Kubeconfig is a file that leads an account through it.
	Kubeconfig string

	front *httptest.Server
	mu    sync.Mutex
	// held is closed when news may pass again, cut when questions may; nil while
	// they may.
	held, cut chan struct{}
	requests  []string
}

// Proxy starts one for whom a kubeconfig is. Its clients have to be gone by the end
// of the test, or are cut off.
func (c *Cluster) Proxy(tb testing.TB, kubeconfig string) *Proxy {
	tb.Helper()
	target, err := url.Parse(c.URL())
	harness.Must(tb, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA())
	p := &Proxy{}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true},
		FlushInterval:  -1, // at once
		ModifyResponse: p.hold,
	}
	p.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.count(r)
		p.wait(r, &p.cut)
		proxy.ServeHTTP(w, r)
	}))
	p.front.EnableHTTP2 = true
	p.front.StartTLS()
	tb.Cleanup(func() {
		p.Mend()
		p.front.CloseClientConnections()
		p.front.Close()
	})
	config, err := clientcmd.LoadFromFile(kubeconfig)
	harness.Must(tb, err)
	for _, one := range config.Clusters {
		one.Server = p.front.URL
		one.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.front.Certificate().Raw})
	}
	p.Kubeconfig = filepath.Join(tb.TempDir(), "kubeconfig")
	harness.Must(tb, clientcmd.WriteToFile(*config, p.Kubeconfig))
	return p
}

// count notes a request as its method, path and field selector; a watch is marked.
func (p *Proxy) count(r *http.Request) {
	what := r.Method + " " + r.URL.Path
	if selector := r.URL.Query().Get("fieldSelector"); selector != "" {
		what += " " + selector
	}
	if r.URL.Query().Get("watch") != "" {
		what += " watch"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, what)
}

// Requests returns all that came so far and has all these words in it.
func (p *Proxy) Requests(words ...string) (found []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
next:
	for _, r := range p.requests {
		for _, w := range words {
			if !strings.Contains(r, w) {
				continue next
			}
		}
		found = append(found, r)
	}
	return found
}

// Lag keeps back what watches bring from now on.
func (p *Proxy) Lag() { p.set(&p.held, true) }

// Pass lets through what was kept back.
func (p *Proxy) Pass() { p.set(&p.held, false) }

// Sever keeps everything back.
func (p *Proxy) Sever() {
	p.Lag()
	p.set(&p.cut, true)
}

// Mend lets everything through.
func (p *Proxy) Mend() {
	p.set(&p.cut, false)
	p.Pass()
}

func (p *Proxy) set(what *chan struct{}, shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case shut && *what == nil:
		*what = make(chan struct{})
	case !shut && *what != nil:
		close(*what)
		*what = nil
	}
}

// wait waits until a way is open, or no caller waits.
func (p *Proxy) wait(r *http.Request, what *chan struct{}) {
	p.mu.Lock()
	shut := *what
	p.mu.Unlock()
	if shut != nil {
		select {
		case <-shut:
		case <-r.Context().Done():
		}
	}
}

func (p *Proxy) hold(r *http.Response) error {
	if r.Request.URL.Query().Get("watch") != "" {
		r.Body = &heldBody{r.Body, p, r.Request}
	}
	return nil
}

// heldBody is what a watch brings.
type heldBody struct {
	io.ReadCloser
	p *Proxy
	r *http.Request
}

// Read implements io.Reader.
func (h *heldBody) Read(to []byte) (int, error) {
	n, err := h.ReadCloser.Read(to)
	h.p.wait(h.r, &h.p.held)
	return n, err
}
