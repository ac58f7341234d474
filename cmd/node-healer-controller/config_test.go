package main

import (
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/test/harness/flagtest"
)

const required = "--pod-name=p --pod-uid=u "

func TestDefaults(t *testing.T) {
	flagtest.Config(t, parse, required, config{
		podName: "p", podNamespace: "csi-addons-node-healer", podUID: "u", serviceAccount: "node-healer-controller", healthAddress: ":9081", leaderElect: true, kubeletRoot: "/var/lib/kubelet",
		leaseDuration: 15 * time.Second, renewDeadline: 10 * time.Second, retryPeriod: 2 * time.Second,
		gatewayNamespace: "csi-addons-node-healer", gatewayServer: "node-healer.csi-addons.io", gatewayName: "node-healer-gateway", configMap: "node-healer",
		maxCalls: 32, maxCallsPerNode: 4,
		logging: command.Logging{Format: "text"},
	})
}

func TestEveryFlagIsTaken(t *testing.T) {
	flagtest.Config(t, parse, required+`--service-account=sa --kubeconfig=/kc --pod-namespace=ns --metrics-address=:1 --health-address=:2 --leader-elect=false --kubelet-root=/k
		--leader-elect-lease-duration=3s --leader-elect-renew-deadline=2s --leader-elect-retry-period=1s
		--gateway-namespace=gns --gateway-server=s --gateway-ca=/ca --gateway-name=gn --config-map=cm --max-calls=5 --max-calls-per-node=6 --logging-format=json -v=7`, config{
		kubeconfig: "/kc", podName: "p", podNamespace: "ns", podUID: "u", serviceAccount: "sa", metricsAddress: ":1", healthAddress: ":2", kubeletRoot: "/k",
		leaseDuration: 3 * time.Second, renewDeadline: 2 * time.Second, retryPeriod: time.Second,
		gatewayNamespace: "gns", gatewayServer: "s", gatewayCA: "/ca", gatewayName: "gn", configMap: "cm",
		maxCalls: 5, maxCallsPerNode: 6, logging: command.Logging{Verbosity: 7, Format: "json"},
	})
}

func TestRules(t *testing.T) {
	flagtest.Rules(t, parse, [][2]string{
		{"--pod-uid=u", "--pod-name"},
		{"--pod-name=p", "--pod-uid"},
		{"--pod-namespace=", "--pod-namespace"},
		{"--service-account=", "--service-account"},
		{"--gateway-namespace=", "--gateway-namespace"},
		{"--gateway-server=", "--gateway-server"},
		{"--gateway-name=", "--gateway-name"},
		{"--config-map=", "--config-map"},
		{"--kubelet-root=k", "--kubelet-root"},
		{"--leader-elect-lease-duration=10s", "--leader-elect-lease-duration"},
		{"--leader-elect-retry-period=9s", "--leader-elect-retry-period"},
		{"--leader-elect-retry-period=0s", "--leader-elect-retry-period"},
		{"--max-calls=0", "--max-calls"},
		{"--max-calls-per-node=0", "--max-calls-per-node"},
		{"-v=8", "-v"},
		{"stray", "stray"},
		{"--version", ""},
	})
}

func TestHelp(t *testing.T) { flagtest.Help(t, parse, new(config).flags()) }

func TestDocs(t *testing.T) { flagtest.Docs(t, new(config).flags()) }
