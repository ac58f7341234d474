package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// TLS configures the listener. The names are those of the CSI-Addons sidecar's flags:
// --tls-min-version and --tls-cipher-suites. What is empty is Go's default.
type TLS struct {
	// CertFile and KeyFile hold a certificate chain and its key in PEM; they are read
	// again when they change. Without them the gateway makes a self-signed certificate.
	// Clients verify either by the registration, which has it; one that does not protects
	// its token from eavesdroppers, but not from a server that pretends to be the gateway.
	CertFile, KeyFile string
	// MinVersion is VersionTLS12 or VersionTLS13.
	MinVersion string
	// CipherSuites are those for TLS 1.2; those of 1.3 are not configurable.
	CipherSuites []string
}

// certificates is a TLS configuration whose certificate follows its files.
type certificates struct {
	config *tls.Config
	// content is that of the files, or a self-signed one.
	content dynamiccertificates.CertKeyContentProvider
}

func newCertificates(t TLS) (*certificates, error) {
	base, err := t.base()
	if err != nil {
		return nil, err
	}
	c := &certificates{config: base}
	switch {
	case (t.CertFile == "") != (t.KeyFile == ""):
		return nil, errors.New("TLS: a certificate and its key come together, only one was given")
	case t.CertFile != "":
		if c.content, err = dynamiccertificates.NewDynamicServingContentFromFiles("gateway", t.CertFile, t.KeyFile); err != nil {
			return nil, fmt.Errorf("TLS: certificate %s with key %s: %w", t.CertFile, t.KeyFile, err)
		}
	default:
		cert, key, err := makeCertificate(time.Now())
		if err != nil {
			return nil, fmt.Errorf("TLS: make a certificate: %w", err)
		}
		if c.content, err = dynamiccertificates.NewStaticCertKeyContent("self-signed", cert, key); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	c.config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair() }
	return c, nil
}

// base returns everything but the certificate. The gRPC credentials add HTTP/2 to ALPN.
func (t TLS) base() (*tls.Config, error) {
	oldest, err := cliflag.TLSVersion(t.MinVersion) // without one VersionTLS12
	if err != nil || oldest < tls.VersionTLS12 {
		return nil, fmt.Errorf("TLS version %q: must be VersionTLS12 or VersionTLS13", t.MinVersion)
	}
	c := &tls.Config{
		MinVersion: oldest,
		// Clients connect rarely and stay: a ticket would only let a session outlive
		// the certificate.
		SessionTicketsDisabled: true,
	}
	if c.CipherSuites, err = cliflag.TLSCipherSuites(t.CipherSuites); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return c, nil
}

// pair returns the certificate that is served now.
func (c *certificates) pair() (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(c.content.CurrentCertKeyContent())
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return &pair, nil
}

// run follows the files until ctx ends.
func (c *certificates) run(ctx context.Context) {
	if files, are := c.content.(*dynamiccertificates.DynamicCertKeyPairContent); are {
		files.Run(ctx, 1)
	}
}

// clockSkew allows for clients whose clocks are behind, as all are when this node's was ahead.
const clockSkew = 10 * 365 * 24 * time.Hour

// makeCertificate returns a self-signed certificate. A handshake, which any client may
// start, costs a twentieth of one with the CSI-Addons sidecar's RSA key.
func makeCertificate(now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	public, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: registration.HostName, NotBefore: now.Add(-clockSkew)}, private)
	if err != nil {
		return nil, nil, err
	}
	cert, certErr := certutil.EncodeCertificates(public)
	key, keyErr := keyutil.MarshalPrivateKeyToPEM(private)
	return cert, key, errors.Join(certErr, keyErr)
}
