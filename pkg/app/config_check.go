package app

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// check returns all broken rules, each with the flag's name.
func (c *config) check() error {
	return errors.Join(
		c.checkNames(),
		c.checkGateway(),
		c.checkSockets(),
		c.checkRestage(),
		oneOf("--mode", c.mode, modeHeal, modeCheck, modeOff),
		oneOf("--loop", c.loop, cluster.LoopModes()...),
		between("--check-interval", c.checkInterval, 10*time.Second, time.Hour),
		oneOf("--heal-containers", c.HealContainers, containers.FUSE, containers.All, containers.Off),
		oneOf("--probe-write", c.probeWrite, "on-suspicion", "never"),
		command.Rule("--lookup-interval", c.LookupInterval == 0 || time.Minute <= c.LookupInterval && c.LookupInterval <= 24*time.Hour, "%s is neither 0 nor between 1m and 24h", c.LookupInterval),
		directories("--kubelet-root", c.KubeletRoot),
		directories("--path-root", c.PathRoots...),
		directories("--state-dir", c.StateDir),
		command.Rule("--host-mount-namespace", c.HostNamespace == "" || filepath.IsAbs(c.HostNamespace), "%q is not an absolute path", c.HostNamespace),
		between("--probe-timeout", c.ProbeTimeout, 100*time.Millisecond, time.Minute),
		between("--slow-answer", c.SlowAnswer, time.Millisecond, c.ProbeTimeout),
		between("--heal-timeout", c.HealTimeout, 2*c.ProbeTimeout, time.Hour),
		between("--driver-timeout", c.DriverTimeout, time.Second, time.Hour),
		between("--driver-grace", c.driverGrace, 0, time.Hour),
		command.Rule("--standalone", !c.Standalone || c.kubeconfig == "", "says that there is no orchestrator, --kubeconfig names one"),
		command.Rule("--node-id", c.nodeID != "" || c.kubeconfig == "", "is required with --kubeconfig"),
		objectName("--pod-namespace", c.podNamespace),
		objectName("--config-map", c.configMap),
	)
}

func (c *config) checkNames() error {
	errs := []error{command.Named("--name", nodeserver.ValidDriverName(c.Name))}
	for _, driver := range c.NoLookup {
		errs = append(errs, command.Named("--no-lookup-driver", nodeserver.ValidDriverName(driver)))
	}
	for _, driver := range c.Drivers {
		errs = append(errs,
			command.Named("--driver-name", nodeserver.ValidDriverName(driver)),
			command.Rule("--name", driver != c.Name, "%s is a driver's own (docs/gateway.md says what a second one of that name breaks)", driver))
	}
	return errors.Join(errs...)
}

func (c *config) checkGateway() error {
	switch uid := c.gatewayUID; {
	case c.gatewaySocket == "":
		return command.Rule("--gateway-uid", uid == 0, "has no meaning without --gateway-socket")
	case uid == 0 || uid > math.MaxInt32:
		return command.Rule("--gateway-uid", false, "%d is not a user other than root", uid)
	case filepath.Dir(c.gatewaySocket) == filepath.Dir(c.endpoint):
		return command.Rule("--gateway-socket", false, "%q is in the directory of --endpoint, which is root's alone", c.gatewaySocket)
	default:
		return command.Rule("--gateway-uid", !slices.Contains(c.AllowedUIDs, uint32(uid)), "%d is among --allowed-uids, and the gateway may call for others only", uid)
	}
}

func (c *config) checkSockets() error {
	errs := []error{
		command.Rule("--metrics-socket", c.metricsSocket == "" || c.gatewayUID == 0 || filepath.Dir(c.metricsSocket) != filepath.Dir(c.endpoint),
			"%q is in the directory of --endpoint, which is root's alone", c.metricsSocket),
		command.Rule("--pprof", !c.pprof || c.metricsSocket != "", "has no meaning without --metrics-socket"),
	}
	for driver, socket := range c.CSISockets {
		errs = append(errs,
			command.Named("--csi-socket", nodeserver.ValidDriverName(driver)),
			command.Rule("--csi-socket", filepath.Clean(socket) == socket && strings.HasPrefix(socket, c.KubeletRoot+"/"), "%q is not a clean path beneath %s", socket, c.KubeletRoot))
	}
	return errors.Join(errs...)
}

func (c *config) checkRestage() error {
	errs := []error{command.Rule("--restage-driver", len(c.restageDrivers) == 0 || c.Standalone, "is for --standalone; elsewhere the setting restage-drivers says it")}
	for name, order := range c.restageDrivers {
		_, err := healer.ParseRestageOrder(string(order))
		errs = append(errs, command.Named("--restage-driver", nodeserver.ValidDriverName(name)), command.Named("--restage-driver", err))
	}
	return errors.Join(errs...)
}

func oneOf[S ~string](flag string, value S, allowed ...S) error {
	return command.Rule(flag, slices.Contains(allowed, value), "%q is none of %s", value, strings.Trim(fmt.Sprint(allowed), "[]"))
}

func between(flag string, d, low, high time.Duration) error {
	return command.Rule(flag, low <= d && d <= high, "%s is not between %s and %s", d, low, high)
}

func directories(flag string, dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, command.Rule(flag, filepath.IsAbs(dir) && filepath.Clean(dir) == dir && dir != "/", "%q is not an absolute, clean path other than /", dir))
	}
	return errors.Join(errs...)
}

func objectName(flag, name string) error {
	broken := content.IsDNS1123Subdomain(name)
	return command.Rule(flag, len(broken) == 0, "%s", strings.Join(broken, "; "))
}
