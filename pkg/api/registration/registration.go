// Package registration names what a gateway writes into its CSIAddonsNode, for the
// gateway and for the controller that finds it by that. What the CSI-Addons project
// defines of the object is not repeated here.
package registration

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CSIAddonsNodes is what CSI-Addons controllers read to find servers
// (github.com/csi-addons/kubernetes-csi-addons, docs/csiaddonsnode.md).
var CSIAddonsNodes = schema.GroupVersionResource{
	Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "csiaddonsnodes",
}

// Kind is that of CSIAddonsNodes.
const Kind = "CSIAddonsNode"

const (
	// ServerName is what a server is registered as, unless it was told otherwise.
	ServerName = "node-healer.csi-addons.io"
	// AudiencePrefix and a node's name are what a token has to be for that is good at
	// this node's gateway only.
	AudiencePrefix = "node-healer.csi-addons.io/"
	// HostName is what the certificate is for that a gateway makes itself.
	HostName = "node-healer-gateway"
)

const (
	// CertificateAnnotation holds the gateway's certificate: DER, in base64.
	CertificateAnnotation = "node-healer.csi-addons.io/certificate"
	// PublicKeyAnnotation holds the SHA-256 of that certificate's public key
	// (SubjectPublicKeyInfo), in hexadecimal digits.
	PublicKeyAnnotation = "node-healer.csi-addons.io/public-key-sha256"
)

// Audience returns what a token for the gateway of a node has to be for.
func Audience(node string) string { return AudiencePrefix + node }

// ObjectName returns the same for every pod that serves a node under a name, so that
// each start renews one object; deploy/gateway/admission.yaml allows no other name, or
// one node's gateway could take the name of another's registration. A driver's name may
// have capitals (RFC 1035), an object's may not. Both parts have at most 63 bytes: a
// driver's by CSI, a node's because kubelet writes it into a label.
func ObjectName(node, name string) string { return strings.ToLower(node + "-" + name) }

// PublicKeyHash is what PublicKeyAnnotation holds of a certificate.
func PublicKeyHash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Annotations returns both annotations of a certificate.
func Annotations(c *x509.Certificate) map[string]string {
	return map[string]string{
		CertificateAnnotation: base64.StdEncoding.EncodeToString(c.Raw),
		PublicKeyAnnotation:   PublicKeyHash(c),
	}
}

// Certificate returns the certificate of an object's annotations. Annotations that do
// not fit each other are an error.
func Certificate(annotations map[string]string) (*x509.Certificate, error) {
	text, hash := annotations[CertificateAnnotation], annotations[PublicKeyAnnotation]
	if text == "" && hash == "" {
		return nil, errors.New("the registration has no certificate")
	}
	var c *x509.Certificate
	raw, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		c, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", CertificateAnnotation, err)
	}
	if PublicKeyHash(c) != hash {
		return nil, fmt.Errorf("annotation %s is of another certificate than %s", PublicKeyAnnotation, CertificateAnnotation)
	}
	return c, nil
}
