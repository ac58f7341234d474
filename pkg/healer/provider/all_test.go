package provider

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

func TestAll(t *testing.T) {
	seen := map[string]bool{}
	providers, err := New(Config{Scope: containers.FUSE, Driver: driver.Config{Stager: driver.NewFromCall(nil)}})
	if err != nil {
		t.Fatal(err)
	}
	if last := providers[len(providers)-1].Name(); last != "driver" {
		t.Errorf("the driver is not told to heal what %s finds after it", last)
	}
	for i, p := range providers {
		if i == 0 && p.Name() != "mounts" {
			t.Errorf("%s comes before the generic provider", p.Name())
		}
		if p.Name() == "" || seen[p.Name()] {
			t.Errorf("two providers named %q", p.Name())
		}
		seen[p.Name()] = true
	}
}
