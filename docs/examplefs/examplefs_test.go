package examplefs

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

func TestConformance(t *testing.T) {
	node := func(health, pid string) (*providertest.Tools, healer.Provider) {
		tools := &providertest.Tools{Files: map[string]string{"/run/examplefs/vol-1.health": health, "/run/examplefs/vol-1.pid": pid}}
		tools.Programs = map[string]providertest.Program{"/usr/sbin/examplefs-reconnect": providertest.Succeeds}
		return tools, New(tools, "/run/examplefs", "/usr/sbin/examplefs-reconnect")
	}
	volume := func(health, pid string) func() healer.Case {
		_, p := node(health, pid)
		return providertest.Volume("examplefs.example.com", "fuse.examplefs", providertest.Collect(p))
	}
	tools, p := node("ok\n", "7\n")
	sick := map[string]func() healer.Case{"SessionLost": volume("lost\n", "7\n"), "no pid file": volume("lost\n", ""), "ReplicaMissing": volume("degraded\n", "7\n")}
	providertest.Run(t, p, providertest.Cases{Healthy: volume("ok\n", "7\n"), Sick: sick, Tools: tools})
	if f, _ := p.Examine(sick["no pid file"]()); f.Steps[0].Refused == "" {
		t.Error("reconnects without a pid file")
	}
}
