package main

import (
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/gateway"
	"github.com/csi-addons/node-healer/test/harness/flagtest"
)

const required = "--node-id=n --pod-name=p --pod-uid=u "

func TestDefaults(t *testing.T) {
	flagtest.Config(t, parse, required, config{
		endpoint: "tcp://:9070", port: 9070, socket: "unix:///run/node-healer/gateway.sock", metricsServer: "unix:///run/node-healer/metrics.sock",
		nodeID: "n", podName: "p", podNamespace: "csi-addons-node-healer", podUID: "u",
		Common: command.Common{Format: "text"},
	})
}

func TestEveryFlagIsTaken(t *testing.T) {
	flagtest.Config(t, parse, required+`--endpoint=tcp://10.0.0.1:7 --server=unix:///s --metrics-endpoint=tcp://:8 --metrics-server=unix:///m --register-as=d --pod-namespace=ns
		--kubeconfig=/kc --token-audience=aud --node-condition --tls-cert=/c --tls-key=/ck --tls-min-version=VersionTLS13
		--tls-cipher-suites=A,B --logging-format=json -v=7`, config{
		endpoint: "tcp://10.0.0.1:7", port: 7, socket: "unix:///s", metricsEndpoint: "tcp://:8", metricsServer: "unix:///m", nodeID: "n", registerAs: "d",
		podName: "p", podNamespace: "ns", podUID: "u", kubeconfig: "/kc", tokenAudience: "aud", nodeCondition: true, Common: command.Common{Verbosity: 7, Format: "json"},
		tls: gateway.TLS{CertFile: "/c", KeyFile: "/ck", MinVersion: "VersionTLS13", CipherSuites: []string{"A", "B"}},
	})
}

func TestRules(t *testing.T) {
	flagtest.Rules(t, parse, [][2]string{
		{"--pod-name=p --pod-uid=u", "--node-id"},
		{"--node-id=n --pod-uid=u", "--pod-name"},
		{"--node-id=n --pod-name=p", "--pod-uid"},
		{required + "--pod-namespace=", "--pod-namespace"},
		{required + "--endpoint=tcp://[::1]:9", ""},
		{required + "--endpoint=:9070", "--endpoint"},
		{required + "--endpoint=unix:///s", "--endpoint"},
		{required + "--endpoint=tcp://host", "--endpoint"},
		{required + "--endpoint=tcp://:0", "--endpoint"},
		{required + "--endpoint=tcp://:65536", "--endpoint"},
		{required + "--endpoint=tcp://:http", "--endpoint"},
		{required + "--endpoint=tcp://:9070/x", "--endpoint"},
		{required + "--server=/run/s", "--server"},
		{required + "--server=unix://s", "--server"},
		{required + "--metrics-endpoint=:9071", "--metrics-endpoint"},
		{required + "--metrics-server=/run/m", "--metrics-server"},
		{required + "--node-condition", "--node-condition"},
		{required + "-v=8", "-v"},
		{required + "stray", "stray"},
		{"--version", "the version is asked for"},
	})
}

// TestEmptyNameInAList: two commas in a row are a mistake, which must not choose fewer suites, or
// Go's own, in silence.
func TestEmptyNameInAList(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "A": {"A"}, "A,,B": {"A", "", "B"}, ",": {"", ""}} {
		var got []string
		if err := list(&got)(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

func TestHelp(t *testing.T) { flagtest.Help(t, parse, new(config).flags()) }

func TestDocs(t *testing.T) { flagtest.Docs(t, new(config).flags()) }
