package app

import (
	"flag"
	"io"
	"time"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
)

// The values of --mode.
const (
	modeHeal  = "heal"
	modeCheck = "check"
	modeOff   = "off"
)

// config is what the command line says, checked.
type config struct {
	setup.Config
	command.Common

	endpoint      string
	gatewaySocket string
	gatewayUID    uint
	metricsSocket string
	pprof         bool
	nodeID        string
	mode          string
	loop          string
	probeWrite    string
	checkInterval time.Duration
	// restageDrivers are orders by the name of the driver.
	restageDrivers map[string]healer.RestageOrder
	probe          bool
	// How to ask Kubernetes, and which pod this is.
	kubeconfig   string
	podNamespace string
	configMap    string
	driverGrace  time.Duration
}

// flags is the one table of all flags: --help and docs/flags.md are made from it. A
// word in backquotes stands for the value.
func (c *config) flags() *flag.FlagSet {
	f := flag.NewFlagSet("node-healer", flag.ContinueOnError)
	f.StringVar(&c.endpoint, "endpoint", "unix:///run/csi-addons/csi-addons.sock", "where to serve: `unix:///PATH`. A stale socket is replaced, a live one or another file is not")
	f.StringVar(&c.gatewaySocket, "gateway-socket", "", "where to serve node-healer-gateway: `unix:///PATH`, in a directory of its own; empty: off")
	f.StringVar(&c.metricsSocket, "metrics-socket", "", "where to serve /metrics, /healthz and /readyz over HTTP: `unix:///PATH`; may be in the directory of --gateway-socket, and is then for the gateway, too; empty: off")
	f.BoolVar(&c.pprof, "pprof", false, "serve Go's profiles at /debug/pprof/ of --metrics-socket, to root only")
	f.UintVar(&c.gatewayUID, "gateway-uid", 0, "user and group that node-healer-gateway runs as; required with --gateway-socket")
	f.StringVar(&c.Name, "name", "node-healer.csi-addons.io", "`name` that Identity answers and the gateway registers: RFC 1035, at most 63 characters; never a driver's")
	f.Func("driver-name", "`name` of a CSI driver whose volumes are served; repeatable; empty: all. A single one is also the driver of volumes without vol_data.json, and csi.v1.Node then finds volumes by ID alone", appendTo(&c.Drivers))
	f.StringVar(&c.nodeID, "node-id", "", "this node's `name` in Kubernetes; required where there is an API to ask")
	f.StringVar(&c.KubeletRoot, "kubelet-root", setup.DefaultKubeletRoot, "kubelet's root `directory`; may be a symbolic link")
	f.Func("path-root", "further `directory` beneath which volume paths may lie; repeatable", appendTo(&c.PathRoots))
	f.StringVar(&c.StateDir, "state-dir", "/var/lib/node-healer", "`directory` for records and the audit log; one server at a time")
	f.StringVar(&c.mode, "mode", modeHeal, "`mode`: heal; check (changes no mount and writes to no volume); off (NodeHealer answers UNIMPLEMENTED)")
	f.StringVar(&c.loop, "loop", cluster.LoopOff, "what the node does by itself: `mode` observe (checks its volumes and reports); heal (also heals them); off. The cluster's setting loop counts instead, unless it is off here")
	f.BoolVar(&c.DryRun, "dry-run", false, "change nothing, for any caller")
	f.DurationVar(&c.checkInterval, "check-interval", time.Minute, "with --loop, the time between two checks of a volume whose mounts do not change: 10s to 1h")
	f.BoolVar(&c.Standalone, "standalone", false, "no API is asked: the caller vouches that the volume it names is wanted")
	f.StringVar(&c.HostNamespace, "host-mount-namespace", "", "`file` of the host's mount namespace, as /proc/1/ns/mnt; empty: this process's own")
	f.DurationVar(&c.ProbeTimeout, "probe-timeout", setup.DefaultProbeTimeout, "how long one probe of a volume, and one write to it, may take: 100ms to 1m")
	f.DurationVar(&c.SlowAnswer, "slow-answer", 0, "when an answer is late; three in a row are SlowResponse: 1ms to --probe-timeout; 0: a fifth of it")
	f.StringVar((*string)(&c.HealContainers), "heal-containers", string(containers.FUSE), "replace dead mounts inside running `containers` too: fuse (those that a daemon serves); all; off. They are reported with each")
	f.StringVar(&c.probeWrite, "probe-write", "on-suspicion", "`when` to try a write that leaves no name: on-suspicion (the filesystem counted errors, or it or the one beneath an overlay is read-only or shut down); never")
	f.DurationVar(&c.LookupInterval, "lookup-interval", 0, "with --loop, how often a FUSE daemon that answers is asked for a name that cannot exist, which only its storage knows: 1m to 24h; 0: only in a call, after a step, and where something else is wrong. A store bills each question")
	f.Func("no-lookup-driver", "`name` of a CSI driver whose FUSE daemons are never asked for such a name; repeatable", appendTo(&c.NoLookup))
	f.DurationVar(&c.HealTimeout, "heal-timeout", setup.DefaultHealTimeout, "how long the work on one volume may take in all: twice --probe-timeout to 1h")
	f.BoolVar(&c.FUSEAbort, "fuse-abort", false, "abort the connection of a FUSE daemon that hangs, if all its mounts are the volume's: what was not written yet is lost")
	f.Func("disable-provider", "`name` of a provider that is not asked, and whose steps do not run; repeatable", appendTo(&c.DisabledProviders))
	f.Func("restage-driver", "`DRIVER=ORDER`: with --standalone, a driver that stages a volume anew whose FUSE daemon has died: stage-first or unmount-first (docs/restage.md); repeatable", putInto(&c.restageDrivers))
	f.DurationVar(&c.DriverTimeout, "driver-timeout", setup.DefaultDriverTimeout, "how long a driver may take to stage a volume anew, three quarters of --heal-timeout at most: 1s to 1h")
	f.Func("csi-socket", "`DRIVER=PATH`: the CSI socket of a driver, beneath --kubelet-root, if it is neither plugins/DRIVER/csi.sock there nor where the driver registered; repeatable", putInto(&c.CSISockets))
	c.AllowedUIDs = []uint32{0}
	f.Func("allowed-uids", "comma-separated user `ids` that may call (default 0)", uidsInto(&c.AllowedUIDs))
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` that says how to reach the Kubernetes API; empty: the pod's service account, and no API outside of a cluster")
	f.StringVar(&c.podNamespace, "pod-namespace", setup.DefaultPodNamespace, "`namespace` of the pod that this runs in")
	f.StringVar(&c.configMap, "config-map", setup.DefaultConfigMap, "`name` of the ConfigMap in --pod-namespace with the settings of the whole cluster; it need not exist")
	f.DurationVar(&c.driverGrace, "driver-grace", setup.DefaultDriverGrace, "how long heals wait while the driver's own pod on this node is not ready: 0 (not at all) to 1h")
	c.AddFlags(f)
	f.BoolVar(&c.probe, "probe", false, "ask the server at --endpoint whether it serves, and exit with 0 if it does: for kubelet's exec probes")
	return f
}

// parse returns what the command line says, checked.
func parse(args []string, out io.Writer) (c config, err error) {
	err = c.Parse(c.flags(), args, out, func() error {
		if c.probe {
			return nil
		}
		if c.SlowAnswer == 0 {
			c.SlowAnswer = c.ProbeTimeout / setup.SlowShare
		}
		c.CheckOnly, c.Off, c.NoWrite, c.GatewayUID = c.mode != modeHeal, c.mode == modeOff, c.probeWrite == "never", uint32(c.gatewayUID)
		return c.check()
	})
	return c, err
}
