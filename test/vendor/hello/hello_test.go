package hello

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

func TestConformance(t *testing.T) {
	t.Setenv("HELLO_DIR", "/run/hello")
	tools := &providertest.Tools{
		Files:    map[string]string{},
		Programs: map[string]providertest.Program{"/run/hello/hello-again": providertest.Succeeds},
	}
	p := New(tools)
	volume := func(says string) func() healer.Case {
		return func() healer.Case {
			make := providertest.Volume(Driver, "ext4")
			tools.Files["/run/hello/"+make().Volume.ID+".health"] = says
			return providertest.Volume(Driver, "ext4", providertest.Collect(p))()
		}
	}
	providertest.Run(t, p, providertest.Cases{Healthy: volume("ok"), Sick: map[string]func() healer.Case{"HelloSessionLost": volume("lost")}, Tools: tools})
}
