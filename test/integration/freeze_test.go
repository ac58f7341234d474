package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestFrozen freezes a filesystem: reads answer, and writers wait. The kernel tells,
// without a write. The volume stays usable for readers, so it is only degraded. After
// the thaw it is healthy, and the worker that waited is gone.
func TestFrozen(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-write=never", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			v := n.NewVolume(fs, "frozen")
			n.Expect("healthy", v.Request())
			before, sum := n.Table(), v.Sum(v.MountPoint())
			thaw := v.Freeze()
			for range 3 {
				n.Expect("abnormal", v.Request(), "Frozen", "thaw", "reads succeed")
				next.untouched()
			}
			n.SameTable(before)
			var stuck []int // one that is started waits for its program's disk, for a moment
			harness.Eventually(t, "one worker waits for the filesystem, and no second one", func() bool {
				stuck = uninterruptible(n)
				return len(stuck) == 1
			})
			thaw()
			// The kernel wakes the worker; on a busy machine that takes a moment.
			harness.Eventually(t, "no worker waits", func() bool { return len(uninterruptible(n)) == 0 })
			healthyAgain(n, v)
			harness.Eventually(t, "the abandoned worker ends", func() bool { return !slices.ContainsFunc(stuck, harness.Lives) })
			n.SameTable(before)
			if v.Sum(v.MountPoint()) != sum {
				t.Error("the data differs")
			}
			next.untouched()
		})
	}
}

// TestFrozenReadOnly finds a freeze also through a read-only mount, whose own EROFS
// says nothing about the filesystem.
func TestFrozenReadOnly(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
	v := n.NewVolume("ext4", "frozen")
	harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	n.Expect("healthy", v.Request())
	thaw := v.Freeze()
	n.Expect("abnormal", v.Request(), "Frozen")
	thaw()
	healthyAgain(n, v)
}

// TestFrozenForAMoment ignores a freeze that ends within the probe timeout, as those
// of backups do, and does not count it as slow.
func TestFrozenForAMoment(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--slow-answer=300ms").Start()
	v := n.NewVolume("ext4", "frozen")
	for range 4 {
		thaw := v.Freeze()
		answered := make(chan string, 1)
		go func() {
			a, err := n.Call(v.Request())
			answered <- fmt.Sprintf("%s %v", a.GetMessage(), err)
		}()
		harness.Eventually(t, "a worker waits for the thaw", func() bool { return len(uninterruptible(n)) == 1 })
		time.Sleep(harness.Slowly(400 * time.Millisecond)) // later than what counts as late
		thaw()
		if a := <-answered; !strings.HasPrefix(a, "healthy") {
			t.Errorf("answered: %s", a)
		}
	}
}

// TestFrozenIsHealed rebinds a frozen filesystem: that writes nothing, and readers
// need not wait.
func TestFrozenIsHealed(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
	v := n.NewVolume("ext4", "frozen")
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	thaw := v.Freeze()
	n.Expect("abnormal", v.Request(), "Frozen", "NotMounted")
	n.SameTable(before)
	thaw()
	healthyAgain(n, v)
	n.SameTable(before)
}

// TestImmutableRoot is healthy: a root directory whose attributes cannot be changed
// says nothing about the filesystem.
func TestImmutableRoot(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "immutable")
	harness.Run(t, "chattr", "+i", v.Staging)
	t.Cleanup(func() { harness.Run(t, "chattr", "-i", v.Staging) })
	n.Expect("healthy", v.Request())
}

// healthyAgain waits until the worker has ended that waited for the thaw: until then the volume
// counts as frozen.
func healthyAgain(n *harness.Node, v *harness.Volume) {
	n.T.Helper()
	harness.Eventually(n.T, "the volume is healthy", func() bool { return strings.HasPrefix(n.Message(v.Request()), "healthy:") })
}

// uninterruptible lists the workers that cannot be ended at the moment.
func uninterruptible(n *harness.Node) []int {
	return slices.DeleteFunc(n.Workers(), func(pid int) bool { return harness.State(pid) != "D" })
}
