package nodeserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pair is a certificate and its key in PEM.
type pair struct{ cert, key []byte }

func newPair(t *testing.T, name string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: plain}),
	}
}

// secretVolume is a directory as kubelet keeps one: what it holds is replaced
// all at once, by a symbolic link.
type secretVolume struct {
	dir  string
	seen int
}

func (s *secretVolume) TLS() TLS {
	return TLS{CertFile: filepath.Join(s.dir, "..data", "tls.crt"), KeyFile: filepath.Join(s.dir, "..data", "tls.key")}
}

func (s *secretVolume) put(t *testing.T, p pair) {
	t.Helper()
	s.seen++
	version := filepath.Join(s.dir, "v"+strings.Repeat("i", s.seen))
	next := filepath.Join(s.dir, "..next")
	for _, err := range []error{
		os.Mkdir(version, 0o700),
		os.WriteFile(filepath.Join(version, "tls.crt"), p.cert, 0o600),
		os.WriteFile(filepath.Join(version, "tls.key"), p.key, 0o600),
		os.Symlink(filepath.Base(version), next),
		os.Rename(next, filepath.Join(s.dir, "..data")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shown gives the name in the certificate that a server shows.
func shown(t *testing.T, address string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", address, speakingHTTP2())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestCertificateRotatesOnALiveListener(t *testing.T) {
	logged := captureLog(t, "0")
	volume := &secretVolume{dir: t.TempDir()}
	volume.put(t, newPair(t, "first"))
	r := serveRemote(t, &fakeHealer{}, volume.TLS())
	old := r.dial(t, trusting(), "Bearer "+goodToken)
	call := remoteCalls["NodeHealer"]
	if got := shown(t, r.address); got != "first" {
		t.Fatalf("the certificate is %q", got)
	}
	if err := call(testContext(t), old); err != nil {
		t.Fatal(err)
	}
	second := newPair(t, "second")
	for _, step := range []struct {
		what string
		put  pair
		want string
	}{
		{"a certificate with another's key", pair{second.cert, newPair(t, "x").key}, "first"},
		{"half of a certificate", pair{second.cert[:len(second.cert)/2], second.key}, "first"},
		{"nothing", pair{}, "first"},
		{"a new pair", second, "second"},
		{"the same again", second, "second"},
	} {
		volume.put(t, step.put)
		for range 2 {
			if got := shown(t, r.address); got != step.want {
				t.Errorf("after %s: the certificate is %q, want %q", step.what, got, step.want)
			}
		}
		if err := call(testContext(t), r.dial(t, trusting(), "Bearer "+goodToken)); err != nil {
			t.Errorf("after %s: a new connection: %v", step.what, err)
		}
		if err := call(testContext(t), old); err != nil {
			t.Errorf("after %s: the old connection: %v", step.what, err)
		}
	}
	for want, times := range map[string]int{"Certificate loaded": 2, "Certificate not reloaded": 3} {
		if got := strings.Count(logged(), want); got != times {
			t.Errorf("%q is %d times in the log, want %d:\n%s", want, got, times, logged())
		}
	}
	// A client that verifies is content as well.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(second.cert)
	verifying := &tls.Config{RootCAs: pool, ServerName: "second"}
	if err := call(testContext(t), r.dial(t, verifying, "Bearer "+goodToken)); err != nil {
		t.Errorf("a client that verifies: %v", err)
	}
}

func TestOwnCertificateIsRenewedBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &ownCert{}
		get := func() *tls.Certificate {
			c, err := own.get(nil)
			if err != nil {
				t.Fatal(err)
			}
			if now := time.Now(); now.Before(c.Leaf.NotBefore) || !now.Before(c.Leaf.NotAfter) {
				t.Errorf("at %v it is valid from %v to %v", now, c.Leaf.NotBefore, c.Leaf.NotAfter)
			}
			return c
		}
		first := get()
		time.Sleep(ownCertLife - ownCertRenew - time.Second)
		if !bytes.Equal(first.Certificate[0], get().Certificate[0]) {
			t.Error("it was replaced too soon")
		}
		time.Sleep(2 * time.Second)
		second := get()
		if bytes.Equal(first.Certificate[0], second.Certificate[0]) {
			t.Error("it was not replaced in time")
		}
		time.Sleep(3 * ownCertLife) // nobody came for long
		get()
	})
}

func TestOwnCertificateServes(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	conn, err := tls.Dial("tcp", r.address, speakingHTTP2())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	state := conn.ConnectionState()
	if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" {
		t.Errorf("got %s and %q", tls.VersionName(state.Version), state.NegotiatedProtocol)
	}
	pool := x509.NewCertPool()
	pool.AddCert(state.PeerCertificates[0])
	if _, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool}); err != nil {
		t.Errorf("it does not verify against itself: %v", err)
	}
}

func TestTLSProfile(t *testing.T) {
	for name, tc := range map[string]struct {
		profile TLS
		client  *tls.Config
		want    func(tls.ConnectionState) bool
	}{
		"TLS 1.2 by default":   {TLS{}, &tls.Config{MaxVersion: tls.VersionTLS12}, func(s tls.ConnectionState) bool { return s.Version == tls.VersionTLS12 }},
		"no TLS 1.1":           {TLS{}, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil},
		"no TLS 1.2 if told":   {TLS{MinVersion: "VersionTLS13"}, &tls.Config{MaxVersion: tls.VersionTLS12}, nil},
		"TLS 1.3 if told":      {TLS{MinVersion: "VersionTLS13"}, &tls.Config{}, func(s tls.ConnectionState) bool { return s.Version == tls.VersionTLS13 }},
		"a suite":              {TLS{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}}, &tls.Config{MaxVersion: tls.VersionTLS12}, func(s tls.ConnectionState) bool { return s.CipherSuite == tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 }},
		"no other suite":       {TLS{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}}, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}, nil},
		"a curve":              {TLS{CurvePreferences: []string{"CurveP384"}}, &tls.Config{}, func(s tls.ConnectionState) bool { return s.CurveID == tls.CurveP384 }},
		"no other curve":       {TLS{CurvePreferences: []string{"CurveP384"}}, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, nil},
		"no session to resume": {TLS{}, &tls.Config{MaxVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(1)}, func(s tls.ConnectionState) bool { return !s.DidResume }},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveRemote(t, &fakeHealer{}, tc.profile)
			tc.client.InsecureSkipVerify, tc.client.NextProtos = true, []string{"h2"}
			var conn *tls.Conn
			var err error
			for range 2 {
				if conn, err = tls.Dial("tcp", r.address, tc.client); err == nil {
					_ = conn.Close()
				}
			}
			switch {
			case tc.want == nil && err == nil:
				t.Errorf("it was accepted: %+v", conn.ConnectionState())
			case tc.want != nil && (err != nil || !tc.want(conn.ConnectionState())):
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTLSMistakes(t *testing.T) {
	for name, tc := range map[string]struct {
		profile TLS
		want    string
	}{
		"an old version":     {TLS{MinVersion: "VersionTLS11"}, "VersionTLS12 or VersionTLS13"},
		"a version's number": {TLS{MinVersion: "1.2"}, "VersionTLS12 or VersionTLS13"},
		"an insecure suite":  {TLS{CipherSuites: []string{"TLS_RSA_WITH_RC4_128_SHA"}}, "must be one of TLS_AES_128_GCM_SHA256, "},
		"no suite":           {TLS{CipherSuites: []string{""}}, "TLS cipher suite"},
		"another curve":      {TLS{CurvePreferences: []string{"X448"}}, "must be one of CurveP256, "},
		"suites that the own key cannot use": {
			TLS{CipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}, "TLS_ECDHE_ECDSA_",
		},
		"a certificate without key": {TLS{CertFile: "/c"}, "come together"},
		"a key without certificate": {TLS{KeyFile: "/k"}, "come together"},
		"files that are not there":  {TLS{CertFile: "/none.crt", KeyFile: "/none.key"}, "/none.crt with key /none.key: "},
	} {
		cfg := testConfig(&fakeHealer{})
		cfg.TCP = &TCP{Authorizer: newFakeAuthorizer(), TLS: tc.profile}
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	names := []string{"X25519", "CurveP256", "CurveP384", "CurveP521", "X25519MLKEM768", "SecP256r1MLKEM768", "SecP384r1MLKEM1024"}
	config, err := TLS{MinVersion: "VersionTLS13", CurvePreferences: names, CipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}.config()
	if err != nil || !slices.Contains(config.CurvePreferences, tls.X25519MLKEM768) || len(config.CurvePreferences) != len(names) {
		t.Errorf("the sidecar's curves: %v", err)
	}
}

// A client without a token learns nothing more by trying TLS in several ways.
func TestUnauthenticatedOverEveryVersion(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := trusting()
		config.MinVersion, config.MaxVersion = version, version
		if err := remoteCalls["reflection"](testContext(t), r.dial(t, config)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: got %v", tls.VersionName(version), err)
		}
	}
}
