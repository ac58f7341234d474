package integration

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
	"sync"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/csi-addons/node-healer/test/harness"
)

// between stands between a server and its API. It can hold back what watches
// bring, as if the server were the last to hear of it, while all other questions
// are answered; or everything, as if the API were away.
type between struct {
	mu sync.Mutex
	// held is closed when news may pass again, cut when questions may; nil while
	// they may.
	held, cut chan struct{}
}

// between makes the member's next server ask its API through one.
func (m *member) between() *between {
	m.T.Helper()
	target, err := url.Parse(m.api.URL())
	harness.Must(m.T, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.api.CA())
	b := &between{}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true},
		FlushInterval:  -1, // at once
		ModifyResponse: b.hold,
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.wait(r, &b.cut)
		proxy.ServeHTTP(w, r)
	}))
	front.EnableHTTP2 = true
	front.StartTLS()
	m.T.Cleanup(func() {
		m.Stop()
		b.mend()
		front.CloseClientConnections()
		front.Close()
	})
	config, err := clientcmd.LoadFromFile(m.kubeconfig)
	harness.Must(m.T, err)
	for _, c := range config.Clusters {
		c.Server = front.URL
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	}
	path := filepath.Join(m.T.TempDir(), "kubeconfig")
	harness.Must(m.T, clientcmd.WriteToFile(*config, path))
	m.Args = append(m.Args, "--kubeconfig="+path)
	return b
}

// lag keeps back what watches bring from now on.
func (b *between) lag() { b.set(&b.held, true) }

// pass lets through what was kept back.
func (b *between) pass() { b.set(&b.held, false) }

// sever keeps everything back.
func (b *between) sever() {
	b.lag()
	b.set(&b.cut, true)
}

// mend lets everything through.
func (b *between) mend() {
	b.set(&b.cut, false)
	b.pass()
}

func (b *between) set(what *chan struct{}, shut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case shut && *what == nil:
		*what = make(chan struct{})
	case !shut && *what != nil:
		close(*what)
		*what = nil
	}
}

// wait waits until a way is open, or nobody waits at its end.
func (b *between) wait(r *http.Request, what *chan struct{}) {
	b.mu.Lock()
	shut := *what
	b.mu.Unlock()
	if shut != nil {
		select {
		case <-shut:
		case <-r.Context().Done():
		}
	}
}

func (b *between) hold(r *http.Response) error {
	if r.Request.URL.Query().Get("watch") != "" {
		r.Body = &heldBody{r.Body, b, r.Request}
	}
	return nil
}

// heldBody is what a watch brings.
type heldBody struct {
	io.ReadCloser
	b *between
	r *http.Request
}

// Read implements io.Reader.
func (h *heldBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.b.wait(h.r, &h.b.held)
	return n, err
}
