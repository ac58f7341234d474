package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// The values of --mode.
const (
	modeHeal  = "heal"
	modeCheck = "check"
	modeOff   = "off"
)

// slowShare is the part of the probe timeout after which an answer is late.
const slowShare = 5

// config is what the command line says, checked.
type config struct {
	endpoint      string
	gatewaySocket string
	gatewayUID    uint
	name          string
	drivers       []string
	nodeID        string
	kubeletRoot   string
	pathRoots     []string
	stateDir      string
	mode          string
	standalone    bool
	hostNamespace string
	probeTimeout  time.Duration
	slowAnswer    time.Duration
	probeWrite    string
	// healContainers says in which containers dead mounts are replaced.
	healContainers containers.Scope
	healTimeout    time.Duration
	allowedUIDs    []uint32
	verbosity      int
	version        bool
	probe          bool
	cluster        clusterConfig
}

// parse reads the arguments without the program's name. Usage and flag errors
// go to out.
func parse(args []string, out io.Writer) (config, error) {
	c := config{allowedUIDs: []uint32{0}}
	f := flag.NewFlagSet("node-healer", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.endpoint, "endpoint", "unix:///run/csi-addons/csi-addons.sock", "where to serve: unix:///PATH")
	f.StringVar(&c.gatewaySocket, "gateway-socket", "", "where to serve node-healer-gateway: unix:///PATH, in a directory of its own; empty: off")
	f.UintVar(&c.gatewayUID, "gateway-uid", 0, "user and group that node-healer-gateway runs as (required with --gateway-socket)")
	f.StringVar(&c.name, "name", "node-healer.csi-addons.io", "name that Identity answers and the gateway registers, RFC 1035, at most 63 characters; none of a driver's")
	f.Func("driver-name", "CSI driver whose volumes are looked after (repeatable; default all)", func(s string) error {
		c.drivers = append(c.drivers, s)
		return nil
	})
	f.StringVar(&c.nodeID, "node-id", "", "this node's name in Kubernetes (required where there is an API to ask)")
	f.StringVar(&c.kubeletRoot, "kubelet-root", "/var/lib/kubelet", "kubelet's root directory; may be a symbolic link")
	f.Func("path-root", "further directory beneath which volume paths may lie (repeatable)", func(s string) error {
		c.pathRoots = append(c.pathRoots, s)
		return nil
	})
	f.StringVar(&c.stateDir, "state-dir", "/var/lib/node-healer", "directory for records and the audit log")
	f.StringVar(&c.mode, "mode", modeHeal, "heal, check (never changes anything) or off (NodeHealer answers UNIMPLEMENTED)")
	f.BoolVar(&c.standalone, "standalone", false, "there is no orchestrator to ask: the caller vouches that the volume it names is wanted")
	f.StringVar(&c.hostNamespace, "host-mount-namespace", "", "the host's mount namespace, as in /proc/1/ns/mnt; empty: our own")
	f.DurationVar(&c.probeTimeout, "probe-timeout", 5*time.Second, "how long one look at a volume may take")
	f.DurationVar(&c.slowAnswer, "slow-answer", 0, "an answer that takes longer is late, and several in a row are reported (default a fifth of --probe-timeout)")
	f.StringVar((*string)(&c.healContainers), "heal-containers", string(containers.FUSE), "replace dead mounts inside running containers too: fuse (only those that a daemon serves), all or off")
	f.StringVar(&c.probeWrite, "probe-write", string(healer.WriteOnSuspicion), "try a write that leaves no name: always, on-suspicion or never")
	f.DurationVar(&c.healTimeout, "heal-timeout", 2*time.Minute, "how long the work on one volume may take in all")
	f.Func("allowed-uids", "comma-separated user ids that may call (default 0)", func(s string) (err error) {
		c.allowedUIDs, err = parseUIDs(s)
		return err
	})
	f.IntVar(&c.verbosity, "v", 0, "log verbosity (klog)")
	f.BoolVar(&c.version, "version", false, "print the version and exit")
	f.BoolVar(&c.probe, "probe", false, "ask the server at --endpoint whether it serves, and exit with 0 if it does: for kubelet's exec probes")
	c.cluster.flags(f)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if c.version || c.probe {
		return c, nil
	}
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	}
	return c, c.check()
}

func parseUIDs(s string) ([]uint32, error) {
	var uids []uint32
	for _, field := range strings.Split(s, ",") {
		uid, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a user id", field)
		}
		uids = append(uids, uint32(uid))
	}
	return uids, nil
}

// onlyDriver is the one driver that is looked after; empty: there may be several.
func (c *config) onlyDriver() string {
	if len(c.drivers) == 1 {
		return c.drivers[0]
	}
	return ""
}

// check names the flag and the rule.
func (c *config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := nodeserver.ValidDriverName(c.name); err != nil {
		bad("--name: %w", err)
	}
	for _, driver := range c.drivers {
		if err := nodeserver.ValidDriverName(driver); err != nil {
			bad("--driver-name: %w", err)
		}
		if driver == c.name {
			bad("--name: %s is a driver's own (docs/gateway.md says what a second one of that name breaks)", driver)
		}
	}
	switch {
	case c.gatewaySocket == "" && c.gatewayUID != 0:
		bad("--gateway-uid: has no meaning without --gateway-socket")
	case c.gatewaySocket == "":
	case c.gatewayUID == 0 || c.gatewayUID > math.MaxInt32:
		bad("--gateway-uid: %d is not a user other than root", c.gatewayUID)
	case filepath.Dir(c.gatewaySocket) == filepath.Dir(c.endpoint):
		bad("--gateway-socket: %q is in the directory of --endpoint, which is root's alone", c.gatewaySocket)
	case slices.Contains(c.allowedUIDs, uint32(c.gatewayUID)):
		bad("--gateway-uid: %d is among --allowed-uids, and the gateway may call for others only", c.gatewayUID)
	}
	if c.mode != modeHeal && c.mode != modeCheck && c.mode != modeOff {
		bad("--mode: %q is none of heal, check, off", c.mode)
	}
	for _, f := range []struct {
		name string
		dirs []string
	}{
		{"--kubelet-root", []string{c.kubeletRoot}}, {"--path-root", c.pathRoots}, {"--state-dir", []string{c.stateDir}},
	} {
		for _, dir := range f.dirs {
			if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
				bad("%s: %q is not an absolute, clean path other than /", f.name, dir)
			}
		}
	}
	if c.hostNamespace != "" && !filepath.IsAbs(c.hostNamespace) {
		bad("--host-mount-namespace: %q is not an absolute path", c.hostNamespace)
	}
	if c.probeTimeout < 100*time.Millisecond || c.probeTimeout > time.Minute {
		bad("--probe-timeout: %s is not between 100ms and 1m", c.probeTimeout)
	}
	if c.slowAnswer == 0 {
		c.slowAnswer = c.probeTimeout / slowShare
	}
	if c.slowAnswer < time.Millisecond || c.slowAnswer > c.probeTimeout {
		bad("--slow-answer: %s is not between 1ms and --probe-timeout", c.slowAnswer)
	}
	if h := c.healContainers; h != containers.FUSE && h != containers.All && h != containers.Off {
		bad("--heal-containers: %q is none of fuse, all, off", h)
	}
	if w := healer.WriteProbe(c.probeWrite); w != healer.WriteAlways && w != healer.WriteOnSuspicion && w != healer.WriteNever {
		bad("--probe-write: %q is none of always, on-suspicion, never", c.probeWrite)
	}
	if c.healTimeout < 2*c.probeTimeout || c.healTimeout > time.Hour {
		bad("--heal-timeout: %s is not between twice --probe-timeout and 1h", c.healTimeout)
	}
	return errors.Join(append(errs, c.cluster.check(c.standalone, c.nodeID))...)
}
