package app

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/engine"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/test/harness/flagtest"
)

func TestDefaults(t *testing.T) {
	flagtest.Config(t, parse, "", config{
		Config: setup.Config{
			Settings:       engine.Settings{HealTimeout: 2 * time.Minute},
			Name:           "node-healer.csi-addons.io",
			KubeletRoot:    "/var/lib/kubelet",
			StateDir:       "/var/lib/node-healer",
			ProbeTimeout:   5 * time.Second,
			SlowAnswer:     time.Second,
			HealContainers: "fuse",
			DriverTimeout:  2 * time.Minute,
			AllowedUIDs:    []uint32{0},
		},
		endpoint: "unix:///run/csi-addons/csi-addons.sock",
		mode:     modeHeal,
		Common:   command.Common{Format: "text"},
		loop:     cluster.LoopOff, probeWrite: "on-suspicion", checkInterval: time.Minute,
		podNamespace: "csi-addons-node-healer", configMap: "node-healer", driverGrace: 5 * time.Minute,
	})
}

func TestEveryFlagIsTaken(t *testing.T) {
	flagtest.Config(t, parse, `--endpoint=unix:///s/s --gateway-socket=unix:///g/g --gateway-uid=7 --metrics-socket=unix:///g/m --pprof --name=m
		--driver-name=d --driver-name=e --node-id=n --kubelet-root=/k
		--path-root=/a --path-root=/b --state-dir=/st --mode=check --loop=observe --dry-run --check-interval=2m --host-mount-namespace=/proc/1/ns/mnt
		--probe-timeout=1s --slow-answer=300ms --probe-write=never --heal-containers=off --heal-timeout=1m --allowed-uids=0,1000 -v=4
		--driver-timeout=3m --csi-socket=d=/k/d.sock --kubeconfig=/kc --pod-namespace=ns --config-map=m --driver-grace=0s`, config{
		Config: setup.Config{
			Settings: engine.Settings{Drivers: []string{"d", "e"}, CheckOnly: true, DryRun: true, NoWrite: true, HealTimeout: time.Minute},
			Name:     "m", KubeletRoot: "/k", PathRoots: []string{"/a", "/b"}, StateDir: "/st",
			HostNamespace: "/proc/1/ns/mnt", ProbeTimeout: time.Second, SlowAnswer: 300 * time.Millisecond, HealContainers: "off",
			DriverTimeout: 3 * time.Minute, CSISockets: map[string]string{"d": "/k/d.sock"}, AllowedUIDs: []uint32{0, 1000}, GatewayUID: 7,
		},
		endpoint: "unix:///s/s", gatewaySocket: "unix:///g/g", gatewayUID: 7, metricsSocket: "unix:///g/m", pprof: true,
		nodeID: "n", mode: modeCheck, loop: cluster.LoopObserve, probeWrite: "never", checkInterval: 2 * time.Minute, Common: command.Common{Verbosity: 4, Format: "text"},
		kubeconfig: "/kc", podNamespace: "ns", configMap: "m",
	})
}

const (
	driverNamed = "--driver-name=csi.example.com "
	withGateway = "--gateway-socket=unix:///run/g/s "
)

// rules are command lines, and the flag that is wrong in each; empty: none.
var rules = [][2]string{
	{"", ""},
	{driverNamed + "--driver-name=other.example.com", ""},
	{"--name=", "--name"},
	{"--name=-x", "--name"},
	{driverNamed + "--name=csi.example.com", "--name"},
	{"--driver-name=", "--driver-name"},
	{"--driver-name=-x", "--driver-name"},
	{"--driver-name=" + strings.Repeat("x", 64), "--driver-name"},
	{driverNamed + "--mode=heal", ""},
	{driverNamed + "--mode=check", ""},
	{driverNamed + "--mode=off", ""},
	{driverNamed + "--probe-timeout=300ms", ""}, // the default of --slow-answer follows
	{driverNamed + "--slow-answer=1us", "--slow-answer"},
	{driverNamed + "--slow-answer=6s", "--slow-answer"},
	{driverNamed + "--probe-write=never", ""},
	{driverNamed + "--probe-write=always", "--probe-write"},
	{driverNamed + "--probe-write=", "--probe-write"},
	{driverNamed + "--probe-write=sometimes", "--probe-write"},
	{driverNamed + "--mode=Heal", "--mode"},
	{driverNamed + "--loop=mend", "--loop"},
	{driverNamed + "--check-interval=10s", ""},
	{driverNamed + "--pprof", "--pprof"},
	{driverNamed + "--endpoint=unix:///run/a/s --metrics-socket=unix:///run/a/m", ""},
	{driverNamed + withGateway + "--gateway-uid=7 --metrics-socket=unix:///run/g/m", ""},
	{driverNamed + withGateway + "--gateway-uid=7 --endpoint=unix:///run/a/s --metrics-socket=unix:///run/a/m", "--metrics-socket"},
	{driverNamed + "--check-interval=9s", "--check-interval"},
	{driverNamed + "--check-interval=61m", "--check-interval"},
	{driverNamed + "--mode=", "--mode"},
	{driverNamed + "--csi-socket=d=/var/lib/kubelet/plugins/x/d.sock", ""},
	{driverNamed + "--driver-timeout=999ms", "--driver-timeout"},
	{driverNamed + "--standalone --restage-driver=d=stage-first --restage-driver=e=unmount-first", ""},
	{driverNamed + "--restage-driver=d=stage-first", "--restage-driver"}, // the settings say it
	{driverNamed + "--standalone --restage-driver=d=first", "--restage-driver"},
	{driverNamed + "--standalone --restage-driver=-d=stage-first", "--restage-driver"},
	{driverNamed + "--csi-socket=d", "csi-socket"},
	{driverNamed + "--csi-socket=../d=/var/lib/kubelet/d.sock", "--csi-socket"},
	{driverNamed + "--csi-socket=d=/run/d.sock", "--csi-socket"},
	{driverNamed + "--csi-socket=d=/var/lib/kubelet/../d.sock", "--csi-socket"},
	{driverNamed + "--kubelet-root=", "--kubelet-root"},
	{driverNamed + "--kubelet-root=var", "--kubelet-root"},
	{driverNamed + "--kubelet-root=/", "--kubelet-root"},
	{driverNamed + "--kubelet-root=/a/../b", "--kubelet-root"},
	{driverNamed + "--kubelet-root=/a/", "--kubelet-root"},
	{driverNamed + "--path-root=/a --path-root=b", "--path-root"},
	{driverNamed + "--path-root=/", "--path-root"},
	{driverNamed + "--state-dir=x", "--state-dir"},
	{driverNamed + "--state-dir=/a//b", "--state-dir"},
	{driverNamed + "--host-mount-namespace=proc", "--host-mount-namespace"},
	{driverNamed + "--probe-timeout=99ms", "--probe-timeout"},
	{driverNamed + "--probe-timeout=100ms", ""},
	{driverNamed + "--probe-timeout=1m --heal-timeout=2m", ""},
	{driverNamed + "--probe-timeout=61s --heal-timeout=1h", "--probe-timeout"},
	{driverNamed + "--probe-timeout=-1s", "--probe-timeout"},
	{driverNamed + "--probe-timeout=5", "probe-timeout"},
	{driverNamed + "--heal-timeout=9999ms", "--heal-timeout"},
	{driverNamed + "--heal-timeout=10s", ""},
	{driverNamed + "--heal-timeout=1h", ""},
	{driverNamed + "--heal-timeout=1h1s", "--heal-timeout"},
	{driverNamed + "--allowed-uids=4294967295", ""},
	{driverNamed + "--allowed-uids=4294967296", "allowed-uids"},
	{driverNamed + "--allowed-uids=-1", "allowed-uids"},
	{driverNamed + "--allowed-uids=", "allowed-uids"},
	{driverNamed + "--allowed-uids=0,,1", "allowed-uids"},
	{driverNamed + "--allowed-uids=root", "allowed-uids"},
	{driverNamed + "-v=x", "-v"},
	{driverNamed + "-v=7", ""},
	{driverNamed + "-v=8", "-v"},
	{driverNamed + "--unknown", "unknown"},
	{driverNamed + "check", `"check"`},
	{driverNamed + "--standalone", ""},
	{driverNamed + "--standalone --kubeconfig=/k", "--standalone"},
	{driverNamed + "--kubeconfig=/k", "--node-id"},
	{driverNamed + "--kubeconfig=/k --node-id=n", ""},
	{driverNamed + "--pod-namespace=", "--pod-namespace"},
	{driverNamed + "--pod-namespace=A_b", "--pod-namespace"},
	{driverNamed + "--config-map=", "--config-map"},
	{driverNamed + "--driver-grace=-1s", "--driver-grace"},
	{driverNamed + "--driver-grace=61m", "--driver-grace"},
	{withGateway + "--gateway-uid=70707", ""},
	{withGateway, "--gateway-uid"},
	{withGateway + "--gateway-uid=0", "--gateway-uid"},
	{withGateway + "--gateway-uid=4294967296", "--gateway-uid"},
	{withGateway + "--gateway-uid=7 --allowed-uids=0,7", "--gateway-uid"},
	{"--gateway-uid=7", "--gateway-uid"},
	{"--gateway-socket=unix:///run/csi-addons/g --gateway-uid=7", "--gateway-socket"},
	{"--version", "the version is asked for"},
}

func TestRules(t *testing.T) { flagtest.Rules(t, parse, rules) }

func TestAllMistakesAtOnceAndAlwaysTheSame(t *testing.T) {
	args := strings.Fields("--name=-x --mode=x --kubelet-root=a --path-root=b --state-dir=c --probe-timeout=0s")
	_, first := parse(args, io.Discard)
	for _, name := range []string{"--name", "--mode", "--kubelet-root", "--path-root", "--state-dir", "--probe-timeout"} {
		if first == nil || !strings.Contains(first.Error(), name) {
			t.Fatalf("%s is not named in %v", name, first)
		}
	}
	for range 20 {
		if _, err := parse(args, io.Discard); err.Error() != first.Error() {
			t.Fatalf("two orders of one message:\n%v\n%v", first, err)
		}
	}
}

func TestHelp(t *testing.T) { flagtest.Help(t, parse, new(config).flags()) }

func TestDocs(t *testing.T) { flagtest.Docs(t, new(config).flags()) }
