package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// inContainerInstants are all instants at which a worker can be stopped while it
// replaces mounts in containers, in the order in which it comes by.
var inContainerInstants = []string{
	"replace-in-container/cloned", "replace-in-container/entered", "replace-in-container/copied", "replace-in-container/beneath",
	"replace-in-container/detached", "replace-in-container/verified", "replace-in-container/finalized",
}

// TestInContainerReadOnlyAtEveryInstant heals a container whose mount is read-only,
// and in which a process tries to write all the time: it never can, and at no
// instant is there a mount through which it could.
func TestInContainerReadOnlyAtEveryInstant(t *testing.T) {
	n := harness.NewNode(t)
	n.Pause = strings.Join(inContainerInstants, ",")
	n.Start()
	s := newServed(n, "read-only inside")
	u := s.usedBy(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint(), Options: []string{"ro"}}},
		Loop:   &harness.Loop{Read: "/data/a", Write: "/data/loop", Busy: true},
	})
	for range 3 {
		u.die()
		stops := 0
		a := atEachStop(n, u.Request(), func() {
			stops++
			for _, m := range u.c.MountsAt("/data") {
				if !m.Attr.Has(facts.AttrReadOnly) {
					t.Errorf("at stop %d a mount of %s is %s", stops, m.Dev, m.Attr)
				}
			}
		})
		if a == nil || a.GetAbnormal() || stops != len(inContainerInstants) {
			t.Errorf("got %v after %d stops", a, stops)
		}
		u.works()
	}
	if got := u.c.Progress(); got.Writes != 0 {
		t.Errorf("%d of %d writes succeeded", got.Writes, got.Turns)
	}
	if _, err := os.Stat(filepath.Join(u.disk.Backing, "loop")); err == nil {
		t.Error("something was written")
	}
}

// TestInContainerNeverBare stops at every instant: in the container there is the dead
// volume or the living one, and no moment in which the directory below shows.
func TestInContainerNeverBare(t *testing.T) {
	n := harness.NewNode(t)
	n.Pause = strings.Join(inContainerInstants, ",")
	n.Start()
	s := newServed(n, "never bare inside")
	u := s.usedBy(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}},
		Loop:   &harness.Loop{Read: "/data/a", Write: "/data/loop", Busy: true},
	})
	for range 5 {
		u.die()
		a := atEachStop(n, u.Request(), func() {
			if len(u.c.MountsAt("/data")) == 0 {
				t.Error("nothing is mounted")
			}
			u.c.AwaitTurns()
		})
		if a == nil || a.GetAbnormal() {
			t.Errorf("got %v", a)
		}
		u.works()
	}
}
