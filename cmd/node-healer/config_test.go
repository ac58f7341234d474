package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDefaults(t *testing.T) {
	got, err := parse(nil, io.Discard)
	want := config{
		endpoint:     "unix:///run/csi-addons/csi-addons.sock",
		name:         "node-healer.csi-addons.io",
		kubeletRoot:  "/var/lib/kubelet",
		stateDir:     "/var/lib/node-healer",
		mode:         modeHeal,
		probeTimeout: 5 * time.Second,
		slowAnswer:   time.Second,
		probeWrite:   "on-suspicion", healContainers: "fuse",
		healTimeout: 2 * time.Minute,
		allowedUIDs: []uint32{0},
		cluster: clusterConfig{
			podNamespace: "csi-addons-node-healer", configMap: "node-healer",
			driverGrace: 5 * time.Minute,
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestEveryFlagIsTaken(t *testing.T) {
	got, err := parse(strings.Fields(`--endpoint=unix:///s/s --gateway-socket=unix:///g/g --gateway-uid=7 --name=m
		--driver-name=d --driver-name=e --node-id=n --kubelet-root=/k
		--path-root=/a --path-root=/b --state-dir=/st --mode=check --host-mount-namespace=/proc/1/ns/mnt
		--probe-timeout=1s --slow-answer=300ms --probe-write=never --heal-containers=off --heal-timeout=1m --allowed-uids=0,1000 -v=4
		--kubeconfig=/kc --pod-namespace=ns --config-map=m --driver-grace=0s`), io.Discard)
	want := config{
		endpoint: "unix:///s/s", gatewaySocket: "unix:///g/g", gatewayUID: 7, name: "m",
		drivers: []string{"d", "e"}, nodeID: "n", kubeletRoot: "/k",
		pathRoots: []string{"/a", "/b"}, stateDir: "/st", mode: modeCheck,
		hostNamespace: "/proc/1/ns/mnt", probeTimeout: time.Second, slowAnswer: 300 * time.Millisecond, probeWrite: "never", healContainers: "off", healTimeout: time.Minute,
		allowedUIDs: []uint32{0, 1000}, verbosity: 4,
		cluster: clusterConfig{
			kubeconfig: "/kc", podNamespace: "ns", configMap: "m",
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestRules(t *testing.T) {
	const named = "--driver-name=csi.example.com "
	const socket = "--gateway-socket=unix:///run/g/s "
	for _, tc := range []struct {
		args string
		want string // what the error names; empty: accepted
	}{
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
		{named + "--probe-write=always", ""},
		{named + "--probe-write=", "--probe-write"},
		{named + "--probe-write=sometimes", "--probe-write"},
		{named + "--mode=Heal", "--mode"},
		{named + "--mode=", "--mode"},
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
		{"--version stray", ""},
	} {
		_, err := parse(strings.Fields(tc.args), io.Discard)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%q: %v", tc.args, err)
		case tc.want != "" && err == nil:
			t.Errorf("%q: accepted", tc.args)
		case tc.want != "" && !strings.Contains(err.Error(), tc.want):
			t.Errorf("%q: %v does not name %s", tc.args, err, tc.want)
		}
	}
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

func TestHelp(t *testing.T) {
	var out strings.Builder
	if _, err := parse([]string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{
		"-endpoint", "-driver-name", "-node-id", "-kubelet-root", "-path-root", "-state-dir", "-mode", "-standalone",
		"-host-mount-namespace", "-probe-timeout", "-heal-timeout", "-allowed-uids", "-v", "-version",
	} {
		if !strings.Contains(out.String(), "  "+name) {
			t.Errorf("%s is not explained", name)
		}
	}
}

// The table in docs/flags.md has a row for each flag and none for others.
func TestPageListsEveryFlag(t *testing.T) {
	var help strings.Builder
	_, _ = parse([]string{"--help"}, &help)
	page, err := os.ReadFile("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	ours, _, _ := strings.Cut(string(page), "## node-healer-gateway")
	names := func(pattern, text string) []string {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, match[1])
		}
		slices.Sort(found)
		return found
	}
	flags, rows := names(`(?m)^  -([a-z-]+)`, help.String()), names("(?m)^\\| `--?([a-z-]+)` \\|", ours)
	if len(flags) == 0 || !slices.Equal(flags, rows) {
		t.Errorf("docs/flags.md has %v, the flags are %v", rows, flags)
	}
}
