package nodeserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

// TLS says how TCP is encrypted. The names are those of the CSI-Addons
// sidecar's flags: --tls-min-version, --tls-cipher-suites and
// --tls-curve-preferences; what is empty is as Go has it.
type TLS struct {
	// CertFile and KeyFile hold a certificate chain and its key in PEM; they
	// are read again when they change. Without them the server makes a
	// certificate of its own, which nobody can verify: it keeps a token from
	// being read on its way, not from being sent to somebody else.
	CertFile, KeyFile string
	// MinVersion is VersionTLS12 or VersionTLS13.
	MinVersion string
	// CipherSuites are those for TLS 1.2; those of 1.3 are not configurable.
	CipherSuites []string
	// CurvePreferences are the key exchanges that are offered.
	CurvePreferences []string
}

// config gives what package tls takes. HTTP/2 over ALPN is added with the
// credentials.
func (t TLS) config() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Clients come seldom and stay: a ticket would only let a session
		// outlive the certificate.
		SessionTicketsDisabled: true,
	}
	var errs []error
	switch t.MinVersion {
	case "", "VersionTLS12":
	case "VersionTLS13":
		c.MinVersion = tls.VersionTLS13
	default:
		errs = append(errs, fmt.Errorf("TLS version %s: must be VersionTLS12 or VersionTLS13", quoted(t.MinVersion)))
	}
	var err error
	if c.CipherSuites, err = pick("cipher suite", t.CipherSuites, suiteNames()); err != nil {
		errs = append(errs, err)
	}
	if c.CurvePreferences, err = pick("curve", t.CurvePreferences, curveNames()); err != nil {
		errs = append(errs, err)
	}
	if len(c.CipherSuites) > 0 && c.MinVersion == tls.VersionTLS13 {
		klog.Background().Info("TLS 1.3 has suites of its own: the configured ones are for TLS 1.2 and will not be used")
	}
	if c.GetCertificate, err = t.certificates(c); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// certificates gives the source of the server's certificate.
func (t TLS) certificates(c *tls.Config) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	switch {
	case (t.CertFile == "") != (t.KeyFile == ""):
		return nil, errors.New("TLS: a certificate and its key come together, only one was given")
	case t.CertFile != "":
		f, err := newCertFiles(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		return f.get, nil
	case len(c.CipherSuites) > 0 && c.MinVersion < tls.VersionTLS13 && !slices.ContainsFunc(t.CipherSuites, fitsOwnKey):
		return nil, errors.New("TLS: the self-signed certificate has an ECDSA key, and no suite is given that TLS 1.2 could use it with (TLS_ECDHE_ECDSA_...)")
	default:
		own := &ownCert{}
		if _, err := own.get(nil); err != nil {
			return nil, err
		}
		return own.get, nil
	}
}

func fitsOwnKey(suite string) bool { return strings.HasPrefix(suite, "TLS_ECDHE_ECDSA_") }

// pick finds names in a table, or says what there is to choose from.
func pick[T any](what string, names []string, table map[string]T) ([]T, error) {
	var out []T
	for _, name := range names {
		v, ok := table[name]
		if !ok {
			known := make([]string, 0, len(table))
			for k := range table {
				known = append(known, k)
			}
			slices.Sort(known)
			return nil, fmt.Errorf("TLS %s %s: must be one of %s", what, quoted(name), strings.Join(known, ", "))
		}
		out = append(out, v)
	}
	return out, nil
}

// suiteNames has the suites that package tls calls secure, like the sidecar.
func suiteNames() map[string]uint16 {
	names := map[string]uint16{}
	for _, s := range tls.CipherSuites() {
		names[s.Name] = s.ID
	}
	return names
}

func curveNames() map[string]tls.CurveID {
	names := map[string]tls.CurveID{}
	for _, c := range []tls.CurveID{
		tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521,
		tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024,
	} {
		names[c.String()] = c
	}
	return names
}
