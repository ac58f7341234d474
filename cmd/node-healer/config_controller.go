package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// controllerConfig is for calls over TCP, by the CSI-Addons controller.
type controllerConfig struct {
	endpoint      string
	tokenAudience string
	tls           nodeserver.TLS
}

func (c *controllerConfig) flags(f *flag.FlagSet) {
	f.StringVar(&c.endpoint, "controller-endpoint", "", "where to serve the CSI-Addons controller, over TLS and with a token: tcp://HOST:PORT or tcp://:PORT; empty: off")
	f.StringVar(&c.tokenAudience, "token-audience", "", "audience that a caller's token must be for; empty: the API server's own, as the CSI-Addons controller's is")
	f.StringVar(&c.tls.CertFile, "tls-cert", "", "file with the certificate for --controller-endpoint, read again when it changes; empty: self-signed")
	f.StringVar(&c.tls.KeyFile, "tls-key", "", "file with the key of --tls-cert")
	f.StringVar(&c.tls.MinVersion, "tls-min-version", "", "VersionTLS12 (default) or VersionTLS13")
	f.Func("tls-cipher-suites", "comma-separated cipher suites for TLS 1.2, by the names of Go's crypto/tls; empty: Go's own choice", list(&c.tls.CipherSuites))
	f.Func("tls-curve-preferences", "comma-separated key exchanges, by the names of Go's crypto/tls; empty: Go's own choice", list(&c.tls.CurvePreferences))
}

func list(into *[]string) func(string) error {
	return func(s string) error {
		if *into = strings.Split(s, ","); s == "" {
			*into = nil
		}
		return nil
	}
}

func (c *controllerConfig) check(standalone bool, we clusterConfig) error {
	if c.endpoint == "" {
		return nil
	}
	if standalone {
		return errors.New("--controller-endpoint: callers are judged by the Kubernetes API, which --standalone says is not there")
	}
	var errs []error
	if _, err := c.port(); err != nil {
		errs = append(errs, fmt.Errorf("--controller-endpoint: %w", err))
	}
	for _, f := range []struct{ flag, value string }{{"--pod-name", we.podName}, {"--pod-uid", we.podUID}} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("%s: is required with --controller-endpoint", f.flag))
		}
	}
	return errors.Join(errs...)
}

// port is the part of the endpoint by which the controller finds us.
func (c *controllerConfig) port() (int, error) {
	u, err := url.Parse(c.endpoint)
	if err != nil || u.Scheme != "tcp" || u.Path != "" {
		return 0, fmt.Errorf("%q is not tcp://HOST:PORT", c.endpoint)
	}
	_, text, err := net.SplitHostPort(u.Host)
	if err != nil {
		return 0, fmt.Errorf("%q is not tcp://HOST:PORT", c.endpoint)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("%q is not a port between 1 and 65535", text)
	}
	return port, nil
}
