package integration

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestFrozen has somebody freeze a filesystem: reads answer, and only a write
// shows it. It is healthy again when it is thawed, and the worker that waited
// for that is gone.
func TestFrozen(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-write=always", "--probe-timeout=1s", "--slow-answer=1s").Start()
			next := newNeighbour(n)
			v := n.NewVolume(fs, "frozen")
			n.Expect("healthy", v.Request())
			before, sum := n.Table(), v.Sum(v.Place())
			thaw := freeze(t, v)
			for range 3 {
				n.Expect("abnormal", v.Request(), "Frozen", "thaw")
				next.untouched()
			}
			n.SameTable(before)
			stuck := uninterruptible(n)
			if len(stuck) != 1 {
				t.Errorf("%d workers wait for one filesystem, want 1", len(stuck))
			}
			thaw()
			soon(n, "healthy", v.Request())
			harness.Eventually(t, "the abandoned worker ends", func() bool { return !slices.ContainsFunc(stuck, harness.Lives) })
			n.SameTable(before)
			if v.Sum(v.Place()) != sum {
				t.Error("the data differs")
			}
			next.untouched()
		})
	}
}

// TestFrozenKeepsOff binds a frozen filesystem only when it is thawed.
func TestFrozenKeepsOff(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-write=always", "--probe-timeout=1s").Start()
	v := n.NewVolume("ext4", "frozen")
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	unmounted := n.Table()
	thaw := freeze(t, v)
	for range 2 {
		n.Expect("abnormal", v.Request(), "Frozen", "NotMounted", "not healthy (Frozen)")
		n.SameTable(unmounted)
	}
	thaw()
	soon(n, "healed", v.Request())
	n.SameTable(before)
}

// TestFrozenUnasked does not see what nobody may find out.
func TestFrozenUnasked(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-write=never").Start()
	v := n.NewVolume("ext4", "frozen")
	freeze(t, v)
	n.Expect("healthy", v.Request())
}

// freeze freezes a volume's filesystem (FIFREEZE of linux/fs.h) until it is
// thawed, or the test ends.
func freeze(t *testing.T, v *harness.Volume) (thaw func()) {
	t.Helper()
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878
	dir, err := os.Open(v.Staging)
	harness.Must(t, err)
	frozen := true
	thaw = func() {
		if frozen {
			harness.Must(t, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0))
			harness.Must(t, dir.Close())
		}
		frozen = false
	}
	harness.Must(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	t.Cleanup(thaw) // nobody else could get rid of it
	return thaw
}

// uninterruptible lists the workers that cannot be ended at the moment.
func uninterruptible(n *harness.Node) []int {
	return slices.DeleteFunc(n.Workers(), func(pid int) bool { return harness.State(pid) != "D" })
}
