package registration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"maps"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

func TestObjectNames(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{"n", "node.example.com", strings.Repeat("n", 63)} {
		for _, name := range []string{"a.example.com", "B.example.com", strings.Repeat("x", 63)} {
			got := ObjectName(node, name)
			if problems := content.IsDNS1123Subdomain(got); len(problems) > 0 || seen[got] {
				t.Errorf("%s for %s: %q, %v", name, node, got, problems)
			}
			seen[got] = true
		}
	}
}

func newCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificateComesBackFromItsAnnotations(t *testing.T) {
	c := newCertificate(t)
	got, err := Certificate(Annotations(c))
	if err != nil || !got.Equal(c) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCertificateRefusesAnnotationsThatDoNotFit(t *testing.T) {
	good, other := Annotations(newCertificate(t)), Annotations(newCertificate(t))
	for name, change := range map[string]func(map[string]string){
		"none":             func(a map[string]string) { clear(a) },
		"no hash":          func(a map[string]string) { delete(a, PublicKeyAnnotation) },
		"no certificate":   func(a map[string]string) { delete(a, CertificateAnnotation) },
		"not base64":       func(a map[string]string) { a[CertificateAnnotation] = "-" },
		"another's hash":   func(a map[string]string) { a[PublicKeyAnnotation] = other[PublicKeyAnnotation] },
		"no certificate's": func(a map[string]string) { a[CertificateAnnotation] = "AAAA" },
	} {
		annotations := maps.Clone(good)
		change(annotations)
		if c, err := Certificate(annotations); err == nil {
			t.Errorf("%s: got %v", name, c)
		}
	}
}
