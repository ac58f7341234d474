package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
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
	served *dynamiccertificates.DynamicServingCertificateController
	// files is nil for a self-signed certificate.
	files *dynamiccertificates.DynamicCertKeyPairContent
	// content is the files' or the self-signed one.
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
		if c.files, err = dynamiccertificates.NewDynamicServingContentFromFiles("gateway", t.CertFile, t.KeyFile); err != nil {
			return nil, fmt.Errorf("TLS: certificate %s with key %s: %w", t.CertFile, t.KeyFile, err)
		}
		c.content = c.files
	default:
		cert, key, err := makeCertificate(time.Now())
		if err != nil {
			return nil, fmt.Errorf("TLS: make a certificate: %w", err)
		}
		if c.content, err = dynamiccertificates.NewStaticCertKeyContent("self-signed", cert, key); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	c.served = dynamiccertificates.NewDynamicServingCertificateController(base.Clone(), nil, c.content, nil, nil)
	if c.files != nil {
		c.files.AddListener(c.served)
	}
	if err := c.served.RunOnce(); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	c.config.GetConfigForClient = c.served.GetConfigForClient
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

// leaf returns the certificate that is served now.
func (c *certificates) leaf() (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(c.content.CurrentCertKeyContent())
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return pair.Leaf, nil
}

// run follows the files until ctx ends.
func (c *certificates) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { c.served.Run(1, ctx.Done()) })
	if c.files != nil {
		both.Go(func() { c.files.Run(ctx, 1) })
	}
	both.Wait()
}

const (
	// selfSignedLife is longer than a pod lives, and the next one makes another.
	selfSignedLife = 10 * 365 * 24 * time.Hour
	// clockSkew allows for clients whose clocks are behind, as all are when this node's was ahead.
	clockSkew = selfSignedLife
)

// makeCertificate returns a self-signed certificate. A handshake, which any client may
// start, costs a twentieth of one with the CSI-Addons sidecar's RSA key.
func makeCertificate(now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{ // its serial number is random
		Subject:               pkix.Name{CommonName: registration.HostName},
		DNSNames:              []string{registration.HostName},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(selfSignedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}
