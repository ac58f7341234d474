package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// Trust says by what a gateway's certificate is verified.
type Trust struct {
	// CAFile has the certificates, PEM, of the authorities that sign the gateways'; it is
	// read at each call. Empty: each gateway's registration has its certificate, which
	// is the only one that is accepted from it.
	CAFile string
	// ServerName is the name that a certificate by an authority has to be for.
	ServerName string
}

// config returns how to verify the gateway with these annotations on its registration.
// Verification is Go's own in both cases: a registered certificate is the only root.
func (t Trust) config(annotations map[string]string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: t.ServerName}
	if t.CAFile != "" {
		text, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the gateways' authorities: %w", err)
		}
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM", t.CAFile)
		}
		return config, nil
	}
	certificate, err := registration.Certificate(annotations)
	if err != nil {
		return nil, err
	}
	config.RootCAs.AddCert(certificate)
	switch { // it is known by its key: any name that it is for will do
	case len(certificate.DNSNames) > 0:
		config.ServerName = strings.Replace(certificate.DNSNames[0], "*", "gateway", 1)
	case len(certificate.IPAddresses) > 0:
		config.ServerName = certificate.IPAddresses[0].String()
	default:
		return nil, errors.New("the registered certificate is for no name: it needs a DNS name or an address (subjectAltName)")
	}
	// A root may have signed others.
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if registration.PublicKeyHash(s.PeerCertificates[0]) != annotations[registration.PublicKeyAnnotation] {
			return errors.New("the public key is not the registered one")
		}
		return nil
	}
	return config, nil
}

// bearer is a token that is sent over TLS only.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
