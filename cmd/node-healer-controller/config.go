package main

import (
	"errors"
	"flag"
	"io"
	"path"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/controller"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// config is what the command line says, checked.
type config struct {
	command.Common
	controller.Config

	kubeconfig                    string
	metricsAddress, healthAddress string
	leaderElect                   bool
}

// flags is the one table of all flags: --help and docs/flags.md are made from it. A
// word in backquotes stands for the value.
func (c *config) flags() *flag.FlagSet {
	f := flag.NewFlagSet("node-healer-controller", flag.ContinueOnError)
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` that says how to reach the Kubernetes API; empty: the pod's service account")
	f.StringVar(&c.Gateways.Self.Pod, "pod-name", "", "`name` of the pod that this runs in, to which the tokens for the gateways are bound; required")
	f.StringVar(&c.Gateways.Self.Namespace, "pod-namespace", "csi-addons-node-healer", "`namespace` of the pod that this runs in, and of the leader's lease")
	f.StringVar(&c.Gateways.Self.PodUID, "pod-uid", "", "`UID` of the pod that this runs in; required")
	f.StringVar(&c.Gateways.Self.Account, "service-account", "node-healer-controller", "`name` of the pod's ServiceAccount, for which the tokens for the gateways are made")
	f.StringVar(&c.metricsAddress, "metrics-address", "", "where to serve /metrics over HTTPS: `HOST:PORT` or :PORT; empty: nowhere")
	f.StringVar(&c.healthAddress, "health-address", ":9081", "where to serve /healthz and /readyz over HTTP: `HOST:PORT` or :PORT; empty: nowhere")
	f.BoolVar(&c.leaderElect, "leader-elect", true, "let one of several controllers run at a time; off: start only one")
	f.StringVar(&c.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "kubelet's root `directory` on the nodes")
	f.StringVar(&c.Gateways.Namespace, "gateway-namespace", "csi-addons-node-healer", "`namespace` in which the gateways run and register; who may write csiaddonsnodes there is trusted")
	f.StringVar(&c.Gateways.Server, "gateway-server", registration.ServerName, "`name` that the gateways register: node-healer's --name, or their --register-as")
	f.StringVar(&c.Gateways.Trust.CAFile, "gateway-ca", "", "PEM `file` with the authorities that sign the gateways' certificates, read at each call; empty: the certificate in each gateway's registration")
	f.StringVar(&c.Gateways.Trust.ServerName, "gateway-name", registration.HostName, "with --gateway-ca: `name` that the certificates have to be for")
	f.StringVar(&c.ConfigMap, "config-map", "node-healer", "`name` of the ConfigMap in --gateway-namespace that allows evictions (docs/policy.md)")
	f.IntVar(&c.MaxCalls, "max-calls", 32, "how many `calls` may run at once")
	f.IntVar(&c.MaxCallsPerNode, "max-calls-per-node", 4, "how many `calls` may run at once to one node")
	c.AddFlags(f)
	return f
}

// parse returns what the command line says, checked.
func parse(args []string, out io.Writer) (c config, err error) {
	err = c.Parse(c.flags(), args, out, c.check)
	return c, err
}

// check returns all broken rules, each with the flag's name.
func (c *config) check() error {
	return errors.Join(
		command.Required("--pod-name", c.Gateways.Self.Pod),
		command.Required("--pod-namespace", c.Gateways.Self.Namespace),
		command.Required("--pod-uid", c.Gateways.Self.PodUID),
		command.Required("--service-account", c.Gateways.Self.Account),
		command.Required("--gateway-namespace", c.Gateways.Namespace),
		command.Required("--gateway-server", c.Gateways.Server),
		command.Required("--gateway-name", c.Gateways.Trust.ServerName),
		command.Required("--config-map", c.ConfigMap),
		command.Rule("--kubelet-root", path.IsAbs(c.KubeletRoot), "%q is not an absolute path", c.KubeletRoot),
		command.Rule("--max-calls", c.MaxCalls >= 1, "%d is less than 1", c.MaxCalls),
		command.Rule("--max-calls-per-node", c.MaxCallsPerNode >= 1, "%d is less than 1", c.MaxCallsPerNode),
	)
}
