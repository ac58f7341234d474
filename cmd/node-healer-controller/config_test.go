package main

import (
	"testing"

	"github.com/csi-addons/node-healer/internal/command"
	"github.com/csi-addons/node-healer/internal/controller"
	"github.com/csi-addons/node-healer/test/harness/flagtest"
)

const required = "--pod-name=p --pod-uid=u "

func TestDefaults(t *testing.T) {
	flagtest.Config(t, parse, required, config{
		Config: controller.Config{
			KubeletRoot: "/var/lib/kubelet", ConfigMap: "node-healer", MaxCalls: 32, MaxCallsPerNode: 4,
			Gateways: controller.Gateways{
				Namespace: "csi-addons-node-healer", Server: "node-healer.csi-addons.io", Trust: controller.Trust{ServerName: "node-healer-gateway"},
				Self: controller.Identity{Pod: "p", Namespace: "csi-addons-node-healer", PodUID: "u", Account: "node-healer-controller"},
			},
		},
		healthAddress: ":9081", leaderElect: true,
		Common: command.Common{Format: "text"},
	})
}

func TestEveryFlagIsTaken(t *testing.T) {
	flagtest.Config(t, parse, required+`--service-account=sa --kubeconfig=/kc --pod-namespace=ns --metrics-address=:1 --health-address=:2 --leader-elect=false --kubelet-root=/k
		--gateway-namespace=gns --gateway-server=s --gateway-ca=/ca --gateway-name=gn --config-map=cm --max-calls=5 --max-calls-per-node=6 --logging-format=json -v=7`, config{
		Config: controller.Config{
			KubeletRoot: "/k", ConfigMap: "cm", MaxCalls: 5, MaxCallsPerNode: 6,
			Gateways: controller.Gateways{
				Namespace: "gns", Server: "s", Trust: controller.Trust{CAFile: "/ca", ServerName: "gn"},
				Self: controller.Identity{Pod: "p", Namespace: "ns", PodUID: "u", Account: "sa"},
			},
		},
		kubeconfig: "/kc", metricsAddress: ":1", healthAddress: ":2",
		Common: command.Common{Verbosity: 7, Format: "json"},
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
		{"--max-calls=0", "--max-calls"},
		{"--max-calls-per-node=0", "--max-calls-per-node"},
		{"-v=8", "-v"},
		{"stray", "stray"},
		{"--version", "the version is asked for"},
	})
}

func TestHelp(t *testing.T) { flagtest.Help(t, parse, new(config).flags()) }

func TestDocs(t *testing.T) { flagtest.Docs(t, new(config).flags()) }
