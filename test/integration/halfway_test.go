package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// halfway is a call whose step is paused in the middle.
type halfway struct {
	*harness.Begun
	t testing.TB
	n *harness.Node
	v *harness.Volume
	// healthy is the mount table before anything was broken, sum the data.
	healthy []string
	sum     string
}

// stopRebind loses the published bind of a volume, calls, and waits for a worker
// to stop at one of the given instants of the rebind.
func stopRebind(t *testing.T, fs, instants string) halfway {
	t.Helper()
	return stopHealing(t, fs, instants, (*harness.Volume).Unpublish)
}

// stopUnmountDuplicate is stopRebind for a placeholder that stands on the driver's.
func stopUnmountDuplicate(t *testing.T, instants string) halfway {
	t.Helper()
	return stopHealing(t, "ext4", instants, func(v *harness.Volume) { placeholderOn(t, v.Staging, v.MountPoint()) })
}

func stopHealing(t *testing.T, fs, instants string, breaks func(*harness.Volume)) halfway {
	t.Helper()
	n := harness.NewNode(t, "--standalone")
	n.Pause = instants
	return stopHealingOn(n.Start(), fs, breaks)
}

// stopHealingOn is stopHealing on a node whose server runs.
func stopHealingOn(n *harness.Node, fs string, breaks func(*harness.Volume)) halfway {
	n.T.Helper()
	v := n.NewVolume(fs, "vol at an instant")
	n.Expect("healthy", v.Request())
	h := halfway{t: n.T, n: n, v: v, healthy: n.Table(), sum: v.Sum(v.StagedFile())}
	breaks(v)
	h.Begun = n.BeginAndStop(v.Request())
	return h
}

// again calls once more, and lets every worker go on that stops.
func (h halfway) again() {
	h.t.Helper()
	if a := h.n.Begin(h.v.Request()).LetGo(); a == nil || a.GetAbnormal() {
		h.t.Fatalf("the next call got %v", a)
	}
}

// restart starts the next server, whose workers do not stop.
func (h halfway) restart() {
	h.t.Helper()
	h.n.Pause = ""
	h.n.Start()
}

// intact fails the test when the data seen at a path is not what it was.
func (h halfway) intact(path string) {
	h.t.Helper()
	if h.v.Sum(path) != h.sum {
		h.t.Fatal("the volume lost data")
	}
}
