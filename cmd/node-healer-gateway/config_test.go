package main

import (
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/gateway"
)

const required = "--node-id=n --pod-name=p --pod-uid=u "

func TestDefaults(t *testing.T) {
	got, err := parse(strings.Fields(required), io.Discard)
	want := config{
		endpoint: "tcp://:9070", socket: "unix:///run/node-healer/gateway.sock",
		nodeID: "n", podName: "p", podNamespace: "csi-addons-node-healer", podUID: "u",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestEveryFlagIsTaken(t *testing.T) {
	got, err := parse(strings.Fields(required+`--endpoint=tcp://10.0.0.1:7 --server=unix:///s --register-as=d --pod-namespace=ns
		--kubeconfig=/kc --token-audience=aud --tls-cert=/c --tls-key=/ck --tls-min-version=VersionTLS13
		--tls-cipher-suites=A,B --tls-curve-preferences=C -v=7`), io.Discard)
	want := config{
		endpoint: "tcp://10.0.0.1:7", socket: "unix:///s", nodeID: "n", registerAs: "d",
		podName: "p", podNamespace: "ns", podUID: "u", kubeconfig: "/kc", tokenAudience: "aud", verbosity: 7,
		tls: gateway.TLS{CertFile: "/c", KeyFile: "/ck", MinVersion: "VersionTLS13", CipherSuites: []string{"A", "B"}, CurvePreferences: []string{"C"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestRules(t *testing.T) {
	for args, want := range map[string]string{ // what the error names; empty: accepted
		"--pod-name=p --pod-uid=u":            "--node-id",
		"--node-id=n --pod-uid=u":             "--pod-name",
		"--node-id=n --pod-name=p":            "--pod-uid",
		required + "--pod-namespace=":         "--pod-namespace",
		required + "--endpoint=tcp://[::1]:9": "",
		required + "--endpoint=:9070":         "--endpoint",
		required + "--endpoint=unix:///s":     "--endpoint",
		required + "--endpoint=tcp://host":    "--endpoint",
		required + "--endpoint=tcp://:0":      "--endpoint",
		required + "--endpoint=tcp://:65536":  "--endpoint",
		required + "--endpoint=tcp://:http":   "--endpoint",
		required + "--endpoint=tcp://:9070/x": "--endpoint",
		required + "--server=/run/s":          "--server",
		required + "--server=unix://s":        "--server",
		required + "-v=8":                     "-v",
		required + "stray":                    "stray",
		"--version":                           "",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
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
	_, ours, _ := strings.Cut(string(page), "## node-healer-gateway")
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
