package provider

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
)

func TestAll(t *testing.T) {
	seen := map[string]bool{}
	for i, p := range All(nil, containers.FUSE) {
		if i == 0 && p.Name() != "mounts" {
			t.Errorf("%s comes before the generic provider", p.Name())
		}
		if p.Name() == "" || seen[p.Name()] {
			t.Errorf("two providers named %q", p.Name())
		}
		seen[p.Name()] = true
	}
}
