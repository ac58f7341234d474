package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
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

// call calls a server with a certificate, as the configuration says: with nil as the error it was
// reached.
func call(t *testing.T, config *tls.Config, served tls.Certificate) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&served)))
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	must(t, err)
	defer conn.Close()
	_, err = healerpb.NewHealerNodeClient(conn).NodeHealer(t.Context(), &healerpb.NodeHealerRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
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
		// refused is what the job says; empty: nothing.
		refused string
	}{
		"its own":                          {registered: own, served: own},
		"signed by an authority":           {registered: signedByIt, served: signedByIt},
		"for an address":                   {registered: byAddress, served: byAddress},
		"for many names":                   {registered: wildcard, served: wildcard},
		"another":                          {own, other, "authentication handshake failed: tls: failed to verify certificate: x509: "},
		"another that the registered made": {own, signedByIt, "authentication handshake failed: the public key is not the registered one"},
		"expired":                          {expired, expired, "certificate has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Trust{}.config(registration.Annotations(tc.registered.Leaf))
			must(t, err)
			err = call(t, config, tc.served)
			if (err == nil) != (tc.refused == "") {
				t.Errorf("got %v", err)
			}
			if o := failed(err); err != nil && (o.reason != ReasonGatewayUnreachable || !strings.Contains(o.message, tc.refused)) {
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
		if err := call(t, config, tc.served); (err == nil) != tc.trusted {
			t.Errorf("%s: got %v", name, err)
		}
	}
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := trust.config(nil); err == nil {
		t.Error("an empty file is an authority")
	}
}
