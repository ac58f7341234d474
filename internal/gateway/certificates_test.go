package gateway

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeCertificate writes a pair that is valid from a day on.
func writeCertificate(t *testing.T, dir string, from time.Time) TLS {
	t.Helper()
	cert, key, err := makeCertificate(from)
	must(t, err)
	p := TLS{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	must(t, os.WriteFile(p.CertFile, cert, 0o600))
	must(t, os.WriteFile(p.KeyFile, key, 0o600))
	return p
}

// shown is what the gateway shows to whoever connects.
func (w *world) shown(config *tls.Config) (tls.ConnectionState, error) {
	conn, err := tls.Dial("tcp", w.address, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), conn.Handshake()
}

func TestCertificateIsAsItsFilesAre(t *testing.T) {
	dir, yesterday := t.TempDir(), time.Now().Add(-24*time.Hour).Truncate(time.Second)
	w := newWorld(t, writeCertificate(t, dir, yesterday))
	for _, from := range []time.Time{yesterday, yesterday.Add(time.Hour)} {
		writeCertificate(t, dir, from)
		var got time.Time
		for end := time.Now().Add(time.Minute); time.Now().Before(end) && !got.Equal(from); time.Sleep(10 * time.Millisecond) {
			state, err := w.shown(anyone())
			must(t, err)
			got = state.PeerCertificates[0].NotBefore.Add(clockSkew)
		}
		if !got.Equal(from) {
			t.Errorf("the certificate is of %v, want %v", got, from)
		}
	}
	// Files that cannot be used leave the one before in use.
	must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half of it"), 0o600))
	time.Sleep(200 * time.Millisecond)
	if state, err := w.shown(anyone()); err != nil || !state.PeerCertificates[0].NotBefore.Add(clockSkew).Equal(yesterday.Add(time.Hour)) {
		t.Errorf("without a certificate that can be used: %v", err)
	}
}

func TestSelfSigned(t *testing.T) {
	w := newWorld(t, TLS{})
	state, err := w.shown(anyone())
	must(t, err)
	cert := state.PeerCertificates[0]
	if state.NegotiatedProtocol != "h2" || cert.Subject.CommonName != "node-healer-gateway" || time.Until(cert.NotAfter) < 9*365*24*time.Hour || time.Since(cert.NotBefore) < 365*24*time.Hour {
		t.Errorf("protocol %q, certificate of %s from %s until %s", state.NegotiatedProtocol, cert.Subject, cert.NotBefore, cert.NotAfter)
	}
}

func TestProfileIsKept(t *testing.T) {
	w := newWorld(t, TLS{MinVersion: "VersionTLS13"})
	old := anyone()
	old.MaxVersion = tls.VersionTLS12
	if _, err := w.shown(old); err == nil {
		t.Error("TLS 1.2 is served")
	}
	w = newWorld(t, TLS{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}})
	if state, err := w.shown(old); err != nil || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 {
		t.Errorf("got %x, %v", state.CipherSuite, err)
	}
}

func TestProfileNeeds(t *testing.T) {
	files := writeCertificate(t, t.TempDir(), time.Now())
	for says, p := range map[string]TLS{
		"only one was given":             {CertFile: files.CertFile},
		"no such file":                   {CertFile: "/none", KeyFile: files.KeyFile},
		"must be VersionTLS12 or":        {MinVersion: "VersionTLS11"},
		"cipher suite":                   {CipherSuites: []string{"NULL"}},
		"failed to find certificate PEM": {CertFile: files.KeyFile, KeyFile: files.KeyFile},
	} {
		if _, err := newCertificates(p); err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(says)) {
			t.Errorf("%+v: got %v, want %q", p, err, says)
		}
	}
}
