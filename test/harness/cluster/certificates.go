package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness"
)

// Files of the cluster.
const (
	caCert     = "ca.crt"
	serverCert = "apiserver.crt"
	serverKey  = "apiserver.key"
	signerKey  = "sa.key"
)

// authority signs certificates.
type authority struct {
	root *x509.Certificate
	key  crypto.Signer
}

// issue makes the keys and certificates of a cluster, and the administrator's
// configuration.
func (c *Cluster) issue() error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: "node-healer-test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca, err := certify(root, root, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	if root, err = x509.ParseCertificate(ca); err != nil {
		return err
	}
	c.authority = authority{root, caKey}
	server := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(ServiceIP)},
	}
	cert, key, err := c.authority.issue(server)
	if err != nil {
		return err
	}
	// Members of system:masters are asked for no role.
	adminCert, adminKey, err := c.authority.issue(client("admin", "system:masters"))
	if err != nil {
		return err
	}
	// RSA, as nearly every cluster has it: a token's length is the signature's.
	if c.signer, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return err
	}
	signer, err := keyPEM(c.signer)
	if err != nil {
		return err
	}
	c.ca = certPEM(ca)
	c.config = &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", c.port),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca, CertData: adminCert, KeyData: adminKey},
		Timeout:         harness.Patience,
		QPS:             -1, // the tests set up whole clusters
	}
	for name, content := range map[string][]byte{caCert: c.ca, serverCert: cert, serverKey: key, signerKey: signer} {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return c.writeKubeconfig()
}

// client is a client of the API by name and group.
func client(name, group string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{group}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// issue makes a key and a certificate of it.
func (a authority) issue(subject *x509.Certificate) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	subject.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := certify(subject, a.root, &k.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(k)
	return certPEM(der), key, err
}

func certify(subject, root *x509.Certificate, key crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	subject.SerialNumber = serial
	subject.NotBefore, subject.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	return x509.CreateCertificate(rand.Reader, subject, root, key, signer)
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
