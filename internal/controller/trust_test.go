package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// authority signs certificates; nil: they sign themselves.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newPair(t *testing.T, by *authority, change ...func(*x509.Certificate)) (tls.Certificate, *authority) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{registration.HostName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	for _, c := range change {
		c(template)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.certificate, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(t, err)
	leaf, err := x509.ParseCertificate(raw)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}, &authority{leaf, key}
}

// handshake connects to a server with a certificate, as the configuration says.
func handshake(t *testing.T, config *tls.Config, served tls.Certificate) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{served}, NextProtos: []string{"h2"}})
	must(t, err)
	defer listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := listener.Accept(); err == nil {
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	ours, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	h := &handshakes{TransportCredentials: credentials.NewTLS(config)}
	_, _, err = h.ClientHandshake(context.Background(), config.ServerName, ours) // as gRPC calls it
	_ = ours.Close()
	<-done
	if !errors.Is(h.failure(), err) {
		t.Errorf("the failure is %v, not %v", h.failure(), err)
	}
	return err
}

func TestOnlyTheRegisteredCertificateIsTrusted(t *testing.T) {
	own, ownKey := newPair(t, nil)
	other, _ := newPair(t, nil)
	signedByIt, _ := newPair(t, ownKey)
	expired, _ := newPair(t, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	byAddress, _ := newPair(t, nil, func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(10, 0, 0, 1)} })
	wildcard, _ := newPair(t, nil, func(c *x509.Certificate) { c.DNSNames = []string{"*.nodes.example.com"} })
	for name, tc := range map[string]struct {
		registered, served tls.Certificate
		trusted            bool
	}{
		"its own":                          {own, own, true},
		"signed by an authority":           {signedByIt, signedByIt, true},
		"for an address":                   {byAddress, byAddress, true},
		"for many names":                   {wildcard, wildcard, true},
		"another":                          {own, other, false},
		"another that the registered made": {own, signedByIt, false},
		"expired":                          {expired, expired, false},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Trust{}.config(registration.Annotations(tc.registered.Leaf))
			must(t, err)
			err = handshake(t, config, tc.served)
			if (err == nil) != tc.trusted {
				t.Errorf("got %v", err)
			}
			if o := failed(status.Error(codes.Unavailable, "handshake"), err); err != nil && o.reason != ReasonCertificateRefused {
				t.Errorf("it is reported as %+v", o)
			}
		})
	}
}

func TestRegistrationThatCannotBeTrusted(t *testing.T) {
	nameless, _ := newPair(t, nil, func(c *x509.Certificate) { c.DNSNames = nil })
	for name, annotations := range map[string]map[string]string{
		"none":    nil,
		"no name": registration.Annotations(nameless.Leaf),
	} {
		if config, err := (Trust{}).config(annotations); err == nil {
			t.Errorf("%s: got %+v", name, config)
		}
	}
}

func TestCertificatesByAnAuthority(t *testing.T) {
	root, rootKey := newPair(t, nil)
	good, _ := newPair(t, rootKey)
	named, _ := newPair(t, rootKey, func(c *x509.Certificate) { c.DNSNames = []string{"another"} })
	other, _ := newPair(t, nil)
	file := filepath.Join(t.TempDir(), "ca.crt")
	must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate[0]}), 0o600))
	trust := Trust{CAFile: file, ServerName: registration.HostName}
	for name, tc := range map[string]struct {
		served  tls.Certificate
		trusted bool
	}{
		"good": {good, true}, "for another name": {named, false}, "not by it": {other, false},
	} {
		config, err := trust.config(registration.Annotations(other.Leaf)) // does not count
		must(t, err)
		if err := handshake(t, config, tc.served); (err == nil) != tc.trusted {
			t.Errorf("%s: got %v", name, err)
		}
	}
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := trust.config(nil); err == nil {
		t.Error("an empty file is an authority")
	}
}
