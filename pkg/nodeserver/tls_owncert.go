package nodeserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// The self-signed certificate lives as long as the CSI-Addons sidecar's. Its
// key is of a kind that costs the server a twentieth of the sidecar's RSA in
// each handshake, which anybody may ask for.
const (
	ownCertLife = 365 * 24 * time.Hour
	// ownCertRenew is how long before its end it is replaced.
	ownCertRenew = 30 * 24 * time.Hour
	// ownCertBefore is for clients whose clocks are behind.
	ownCertBefore = time.Hour
)

// ownCert is a self-signed certificate that is there when it is needed, and
// replaced before it ends.
type ownCert struct {
	mu    sync.Mutex
	inUse *tls.Certificate
}

// get is a tls.Config's GetCertificate.
func (o *ownCert) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.inUse != nil && now.After(o.inUse.Leaf.NotBefore) && now.Before(o.inUse.Leaf.NotAfter.Add(-ownCertRenew)) {
		return o.inUse, nil
	}
	made, err := makeCert(now)
	switch {
	case err == nil:
		o.inUse = made
		klog.Background().Info("Certificate made", keyUntil, made.Leaf.NotAfter.UTC().Format(time.RFC3339))
	case o.inUse == nil:
		return nil, err
	default:
		klog.Background().Error(err, "Certificate not renewed, the one before stays in use")
	}
	return o.inUse, nil
}

func makeCert(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a TLS key: %w", err)
	}
	const serialBits = 127 // positive, and 16 bytes long
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("make a certificate's serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "node-healer"},
		NotBefore:             now.Add(-ownCertBefore),
		NotAfter:              now.Add(ownCertLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
