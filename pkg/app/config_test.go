package app

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/test/harness/flagtest"
)

func TestDefaults(t *testing.T) {
	flagtest.Config(t, parse, "", config{
		Config: setup.Config{
			Name:         "node-healer.csi-addons.io",
			KubeletRoot:  "/var/lib/kubelet",
			StateDir:     "/var/lib/node-healer",
			ProbeTimeout: 5 * time.Second,
			SlowAnswer:   time.Second,
			ProbeWrite:   "on-suspicion", HealContainers: "fuse",
			HealTimeout: 2 * time.Minute, DriverTimeout: 2 * time.Minute,
			AllowedUIDs: []uint32{0},
		},
		endpoint: "unix:///run/csi-addons/csi-addons.sock",
		mode:     modeHeal,
		logging:  command.Logging{Format: "text"},
		loop:     cluster.LoopOff, checkInterval: time.Minute,
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
			Name: "m", Drivers: []string{"d", "e"}, KubeletRoot: "/k", PathRoots: []string{"/a", "/b"}, StateDir: "/st", CheckOnly: true, DryRun: true,
			HostNamespace: "/proc/1/ns/mnt", ProbeTimeout: time.Second, SlowAnswer: 300 * time.Millisecond, ProbeWrite: "never", HealContainers: "off",
			HealTimeout: time.Minute, DriverTimeout: 3 * time.Minute, CSISockets: map[string]string{"d": "/k/d.sock"}, AllowedUIDs: []uint32{0, 1000}, GatewayUID: 7,
		},
		endpoint: "unix:///s/s", gatewaySocket: "unix:///g/g", gatewayUID: 7, metricsSocket: "unix:///g/m", pprof: true,
		nodeID: "n", mode: modeCheck, loop: cluster.LoopObserve, checkInterval: 2 * time.Minute, logging: command.Logging{Verbosity: 4, Format: "text"},
		kubeconfig: "/kc", podNamespace: "ns", configMap: "m",
	})
}

func TestRules(t *testing.T) {
	const named = "--driver-name=csi.example.com "
	const socket = "--gateway-socket=unix:///run/g/s "
	flagtest.Rules(t, parse, [][2]string{
		{"", ""},
		{named + "--driver-name=other.example.com", ""},
		{"--name=", "--name"},
		{"--name=-x", "--name"},
		{named + "--name=csi.example.com", "--name"},
		{"--driver-name=", "--driver-name"},
		{"--driver-name=-x", "--driver-name"},
		{"--driver-name=" + strings.Repeat("x", 64), "--driver-name"},
		{named + "--mode=heal", ""},
		{named + "--mode=check", ""},
		{named + "--mode=off", ""},
		{named + "--probe-timeout=300ms", ""}, // the default of --slow-answer follows
		{named + "--slow-answer=1us", "--slow-answer"},
		{named + "--slow-answer=6s", "--slow-answer"},
		{named + "--probe-write=never", ""},
		{named + "--probe-write=always", "--probe-write"},
		{named + "--probe-write=", "--probe-write"},
		{named + "--probe-write=sometimes", "--probe-write"},
		{named + "--mode=Heal", "--mode"},
		{named + "--loop=mend", "--loop"},
		{named + "--check-interval=10s", ""},
		{named + "--pprof", "--pprof"},
		{named + "--endpoint=unix:///run/a/s --metrics-socket=unix:///run/a/m", ""},
		{named + socket + "--gateway-uid=7 --metrics-socket=unix:///run/g/m", ""},
		{named + socket + "--gateway-uid=7 --endpoint=unix:///run/a/s --metrics-socket=unix:///run/a/m", "--metrics-socket"},
		{named + "--check-interval=9s", "--check-interval"},
		{named + "--check-interval=61m", "--check-interval"},
		{named + "--mode=", "--mode"},
		{named + "--csi-socket=d=/var/lib/kubelet/plugins/x/d.sock", ""},
		{named + "--driver-timeout=999ms", "--driver-timeout"},
		{named + "--standalone --restage-driver=d=stage-first --restage-driver=e=unmount-first", ""},
		{named + "--restage-driver=d=stage-first", "--restage-driver"}, // the settings say it
		{named + "--standalone --restage-driver=d=first", "--restage-driver"},
		{named + "--standalone --restage-driver=-d=stage-first", "--restage-driver"},
		{named + "--csi-socket=d", "csi-socket"},
		{named + "--csi-socket=../d=/var/lib/kubelet/d.sock", "--csi-socket"},
		{named + "--csi-socket=d=/run/d.sock", "--csi-socket"},
		{named + "--csi-socket=d=/var/lib/kubelet/../d.sock", "--csi-socket"},
		{named + "--kubelet-root=", "--kubelet-root"},
		{named + "--kubelet-root=var", "--kubelet-root"},
		{named + "--kubelet-root=/", "--kubelet-root"},
		{named + "--kubelet-root=/a/../b", "--kubelet-root"},
		{named + "--kubelet-root=/a/", "--kubelet-root"},
		{named + "--path-root=/a --path-root=b", "--path-root"},
		{named + "--path-root=/", "--path-root"},
		{named + "--state-dir=x", "--state-dir"},
		{named + "--state-dir=/a//b", "--state-dir"},
		{named + "--host-mount-namespace=proc", "--host-mount-namespace"},
		{named + "--probe-timeout=99ms", "--probe-timeout"},
		{named + "--probe-timeout=100ms", ""},
		{named + "--probe-timeout=1m --heal-timeout=2m", ""},
		{named + "--probe-timeout=61s --heal-timeout=1h", "--probe-timeout"},
		{named + "--probe-timeout=-1s", "--probe-timeout"},
		{named + "--probe-timeout=5", "probe-timeout"},
		{named + "--heal-timeout=9999ms", "--heal-timeout"},
		{named + "--heal-timeout=10s", ""},
		{named + "--heal-timeout=1h", ""},
		{named + "--heal-timeout=1h1s", "--heal-timeout"},
		{named + "--allowed-uids=4294967295", ""},
		{named + "--allowed-uids=4294967296", "allowed-uids"},
		{named + "--allowed-uids=-1", "allowed-uids"},
		{named + "--allowed-uids=", "allowed-uids"},
		{named + "--allowed-uids=0,,1", "allowed-uids"},
		{named + "--allowed-uids=root", "allowed-uids"},
		{named + "-v=x", "-v"},
		{named + "--unknown", "unknown"},
		{named + "check", `"check"`},
		{named + "--standalone", ""},
		{named + "--standalone --kubeconfig=/k", "--standalone"},
		{named + "--kubeconfig=/k", "--node-id"},
		{named + "--kubeconfig=/k --node-id=n", ""},
		{named + "--pod-namespace=", "--pod-namespace"},
		{named + "--pod-namespace=A_b", "--pod-namespace"},
		{named + "--config-map=", "--config-map"},
		{named + "--driver-grace=-1s", "--driver-grace"},
		{named + "--driver-grace=61m", "--driver-grace"},
		{socket + "--gateway-uid=70707", ""},
		{socket, "--gateway-uid"},
		{socket + "--gateway-uid=0", "--gateway-uid"},
		{socket + "--gateway-uid=4294967296", "--gateway-uid"},
		{socket + "--gateway-uid=7 --allowed-uids=0,7", "--gateway-uid"},
		{"--gateway-uid=7", "--gateway-uid"},
		{"--gateway-socket=unix:///run/csi-addons/g --gateway-uid=7", "--gateway-socket"},
		{"--version", ""},
	})
}

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
