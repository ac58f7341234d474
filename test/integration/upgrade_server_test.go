package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// interrupted are steps that can be stopped at an instant, and what is checked of each
// once it is over.
var interrupted = []struct {
	instant string
	stop    func(n *harness.Node) (h halfway, back func())
}{
	{"rebind/moved", stopRebindOn},
	{"finalize/set", stopRebindOn},
	{"replace/beneath", stopReplacementOn},
	{"replace-in-container/detached", func(n *harness.Node) (halfway, func()) {
		h, u := stopInContainerOn(n)
		return h, u.works
	}},
}

func stopRebindOn(n *harness.Node) (halfway, func()) {
	h := stopHealingOn(n, "ext4", (*harness.Volume).Unpublish)
	return h, func() {
		h.n.SameTable(h.healthy)
		h.intact(h.v.MountPoint())
		h.v.Writable(h.v.MountPoint())
	}
}

func stopReplacementOn(n *harness.Node) (halfway, func()) {
	h, s := stopReplaceOn(n)
	return h, func() { s.back() }
}

// TestReplacedByAnotherVersion kills a server in the middle of a step, and starts the
// version before or after it on what is left: mounts, record and audit log. One call
// heals. Then the first version comes back, and heals with the record that the other one
// wrote.
func TestReplacedByAnotherVersion(t *testing.T) {
	previous := harness.Previous(t)
	for way, binaries := range [][2]string{{previous, harness.Server()}, {harness.Server(), previous}} {
		next := []string{"newer", "older"}[way]
		for i, step := range interrupted {
			if !inTurn(i, way, 2) {
				continue
			}
			t.Run(next+" at "+step.instant, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone")
				n.Binary, n.Pause = binaries[0], step.instant
				h, back := step.stop(n.Start())

				n.Binary = binaries[1]
				h.kill("server")
				back()
				n.Expect("healthy", h.v.Request())

				n.Stop()
				n.Binary = binaries[0]
				n.Start()
				n.Expect("healthy", h.v.Request())
				h.v.Unpublish()
				n.Expect("healed", h.v.Request(), "rebind")
				sameFormats(t, n)
			})
		}
	}
}

// TestNewerLoopFinishes kills a server of the version before in the middle of a step, and
// starts this version with a loop that heals. There is no call: the loop finds what was
// left half done, and the volume works again, also in the container that uses it.
func TestNewerLoopFinishes(t *testing.T) {
	previous := harness.Previous(t)
	for instant, stop := range map[string]func(n *harness.Node) (h halfway, back func()){
		"rebind/moved": func(n *harness.Node) (halfway, func()) {
			h := stopHealingOn(n, "ext4", func(v *harness.Volume) {
				n.NewContainer(harness.PodUID, v.MountPoint())
				v.Unpublish()
			})
			return h, func() { h.n.SameTable(h.healthy) }
		},
		"replace-in-container/detached": func(n *harness.Node) (halfway, func()) {
			h, u := stopInContainerOn(n)
			return h, u.works
		},
	} {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			n.Binary, n.Pause = previous, instant
			h, back := stop(n.Start())

			n.Kill()
			if h.Err() == nil {
				t.Error("a killed server answered")
			}
			n.Binary, n.Args = harness.Server(), append(n.Args, "--loop=heal", "--check-interval=10s")
			h.restart()
			harness.Eventually(t, "the loop heals", func() bool {
				return strings.Contains(n.Log.String(), `"A watched volume changed" volume_id="`+h.v.ID+`" driver="test.csi.example.com" verdict="healed"`)
			})

			back()
			n.Expect("healthy", h.v.Request())
			sameFormats(t, n)
		})
	}
}

// sameFormats fails the test when one version did not understand what the other wrote.
// An ignored record would also be healed from, but only once the volume was seen working.
func sameFormats(t *testing.T, n *harness.Node) {
	t.Helper()
	for line := range strings.Lines(n.Log.String()) {
		if strings.Contains(line, "unusable record") {
			t.Errorf("a record was ignored: %s", line)
		}
	}
	before, after := 0, 0
	lines := auditOf(t, n)
	for _, e := range lines {
		switch e.When {
		case "before":
			before++
		case "after":
			after++
		}
	}
	// The step that was interrupted has no end.
	if before != after+1 {
		t.Errorf("%d operations began, %d ended\n%v", before, after, lines)
	}
}
