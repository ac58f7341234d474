package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/gateway"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// config is what the command line says, checked.
type config struct {
	command.Common

	endpoint, socket              string
	port                          int // of endpoint
	metricsEndpoint               string
	metricsServer                 string
	nodeID                        string
	registerAs                    string
	podName, podNamespace, podUID string
	kubeconfig, tokenAudience     string
	nodeCondition                 bool
	tls                           gateway.TLS
}

// flags is the one table of all flags: --help and docs/flags.md are made from it. A
// word in backquotes stands for the value.
func (c *config) flags() *flag.FlagSet {
	f := flag.NewFlagSet("node-healer-gateway", flag.ContinueOnError)
	f.StringVar(&c.endpoint, "endpoint", "tcp://:9070", "where to serve, over TLS and with a token: `tcp://HOST:PORT` or tcp://:PORT")
	f.StringVar(&c.socket, "server", "unix:///run/node-healer/gateway.sock", "node-healer's --gateway-socket: `unix:///PATH`")
	f.StringVar(&c.metricsEndpoint, "metrics-endpoint", "", "where to serve /metrics, /healthz and /readyz over HTTPS: `tcp://HOST:PORT` or tcp://:PORT; empty: nowhere")
	f.StringVar(&c.metricsServer, "metrics-server", "unix:///run/node-healer/metrics.sock", "node-healer's --metrics-socket: `unix:///PATH`")
	f.StringVar(&c.nodeID, "node-id", "", "this node's `name` in Kubernetes; required")
	f.StringVar(&c.registerAs, "register-as", "", "CSI driver's `name` to register under, in that driver's namespace only; empty: node-healer's own --name")
	f.StringVar(&c.podName, "pod-name", "", "`name` of the pod that this runs in; required")
	f.StringVar(&c.podNamespace, "pod-namespace", "csi-addons-node-healer", "`namespace` of the pod that this runs in")
	f.StringVar(&c.podUID, "pod-uid", "", "`UID` of the pod that this runs in; required")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` that says how to reach the Kubernetes API; empty: the pod's service account")
	f.StringVar(&c.tokenAudience, "token-audience", "", "another `audience` of callers' tokens, such as the API server's for the CSI-Addons controller; such a token is good at every node. Empty: only "+registration.AudiencePrefix+"NODE")
	f.StringVar(&c.tls.CertFile, "tls-cert", "", "PEM `file` with the certificate, read again when it changes; empty: self-signed")
	f.StringVar(&c.tls.KeyFile, "tls-key", "", "PEM `file` with the key of --tls-cert")
	f.StringVar(&c.tls.MinVersion, "tls-min-version", "", "`version`: VersionTLS12 or VersionTLS13; empty: VersionTLS12")
	f.Func("tls-cipher-suites", "comma-separated cipher suites for TLS 1.2, by the `names` of Go's crypto/tls; empty: Go's own choice", list(&c.tls.CipherSuites))
	f.BoolVar(&c.nodeCondition, "node-condition", false, "keep the condition CSIVolumeProblem on the Node (docs/monitoring.md); needs --metrics-endpoint")
	c.AddFlags(f)
	return f
}

// list reads a flag's comma-separated texts. Empty ones stay, and are no names then: a list of
// nothing else, as "," is, would allow all.
func list(into *[]string) func(string) error {
	return func(s string) error {
		if *into = strings.Split(s, ","); s == "" {
			*into = nil
		}
		return nil
	}
}

// parse returns what the command line says, checked.
func parse(args []string, out io.Writer) (c config, err error) {
	err = c.Parse(c.flags(), args, out, c.check)
	return c, err
}

// check returns all broken rules, each with the flag's name.
func (c *config) check() error {
	var err, metricsErr error
	c.port, err = port(c.endpoint)
	if c.metricsEndpoint != "" {
		_, metricsErr = port(c.metricsEndpoint)
	}
	return errors.Join(
		command.Named("--endpoint", err),
		socket("--server", c.socket),
		socket("--metrics-server", c.metricsServer),
		command.Named("--metrics-endpoint", metricsErr),
		command.Rule("--node-condition", !c.nodeCondition || c.metricsEndpoint != "", "needs --metrics-endpoint"),
		command.Required("--node-id", c.nodeID),
		command.Required("--pod-name", c.podName),
		command.Required("--pod-namespace", c.podNamespace),
		command.Required("--pod-uid", c.podUID),
	)
}

// socket returns an error of a flag whose value names no unix socket.
func socket(flag, value string) error {
	path, is := strings.CutPrefix(value, "unix://")
	return command.Rule(flag, is && filepath.IsAbs(path), "%q is not unix:///PATH", value)
}

// address returns an endpoint in the form that package net takes.
func address(endpoint string) string { return strings.TrimPrefix(endpoint, "tcp://") }

func port(endpoint string) (int, error) {
	_, text, err := net.SplitHostPort(address(endpoint))
	if err != nil || !strings.HasPrefix(endpoint, "tcp://") {
		return 0, fmt.Errorf("%q is not tcp://HOST:PORT", endpoint)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("%q is not a port between 1 and 65535", text)
	}
	return port, nil
}
