package main

import (
	"errors"
	"flag"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

// clusterConfig says how to ask Kubernetes, and who we are there.
type clusterConfig struct {
	kubeconfig   string
	podNamespace string
	configMap    string
	driverGrace  time.Duration
}

const maxGrace = time.Hour

func (c *clusterConfig) flags(f *flag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "file that says how to reach the Kubernetes API; empty: the pod's own service account, and no API outside of a cluster")
	f.StringVar(&c.podNamespace, "pod-namespace", "csi-addons-node-healer", "namespace of the pod we run in")
	f.StringVar(&c.configMap, "config-map", "node-healer", "ConfigMap in --pod-namespace with the settings of the whole cluster; it need not exist")
	f.DurationVar(&c.driverGrace, "driver-grace", 5*time.Minute, "how long heals wait while the driver's own pod on this node is not ready; 0: not at all")
}

func (c *clusterConfig) check(standalone bool, node string) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if standalone && c.kubeconfig != "" {
		bad("--standalone says that there is no orchestrator, --kubeconfig names one")
	}
	if c.kubeconfig != "" && node == "" {
		bad("--node-id: is required with --kubeconfig")
	}
	for _, f := range []struct{ flag, value string }{{"--pod-namespace", c.podNamespace}, {"--config-map", c.configMap}} {
		for _, broken := range content.IsDNS1123Subdomain(f.value) {
			bad("%s: %s", f.flag, broken)
		}
	}
	if c.driverGrace < 0 || c.driverGrace > maxGrace {
		bad("--driver-grace: %s is not between 0 and %s", c.driverGrace, maxGrace)
	}
	return errors.Join(errs...)
}
