package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// longEnough is for how long the kernel may believe a daemon's names and
// attributes, where a test is about that it does.
const longEnough = time.Hour

// newNested starts a container that has mounts of its own beneath the volume.
func newNested(n *harness.Node, valid time.Duration, loop *harness.Loop) *used {
	needsDetachedTrees(n.T)
	n.T.Helper()
	v, d := n.NewFUSEDisk("nested", harness.FUSEConfig{Valid: valid})
	s := &served{Volume: v, disk: d}
	c := n.StartContainer(harness.ContainerSpec{Loop: loop, Mounts: []harness.ContainerMount{
		{At: "/data", Source: s.MountPoint()},
		{At: "/data/sub", Type: "tmpfs", Source: "tmpfs"},
	}})
	s.known()
	if out, err := c.Exec("sh", "-c", "echo kept >/data/sub/kept"); err != nil {
		n.T.Fatal(out, err)
	}
	return &used{served: s, c: c, table: c.Table()}
}

// needsDetachedTrees skips where no mount can be put into a clone that is not mounted
// yet: there a mount inside a dead one keeps it from being replaced.
func needsDetachedTrees(t testing.TB) {
	t.Helper()
	harness.NeedsKernel(t, harness.KernelIs(6, 15), "a mount put into a detached one (Linux 6.15)")
}

// TestInContainerNested copies the mounts inside the dead volume to the one that
// replaces it.
func TestInContainerNested(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newNested(n, longEnough, &harness.Loop{Read: "/data/a", Write: "/data/loop"})
	for range 2 {
		tmpfs := u.c.MountsAt("/data/sub")
		u.die()
		n.Expect("healed", u.Request(), "replace-in-container")
		u.works()
		if got := u.c.MountsAt("/data/sub"); len(got) != 1 || got[0].Dev != tmpfs[0].Dev {
			t.Errorf("beneath the volume there was %v, and is %v", tmpfs, got)
		}
		if out, err := u.c.Exec("cat", "/data/sub/kept"); err != nil || out != "kept\n" {
			t.Errorf("what was in it is %q, %v", out, err)
		}
		n.Expect("healthy", u.Request())
	}
}

// TestInContainerNestedForgotten leaves a container alone when the way to a mount
// inside its volume would have to be asked of the dead daemon: the kernel would drop
// that mount.
func TestInContainerNestedForgotten(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newNested(n, 0, nil) // its mounts are not entered
	before := u.c.Mounts()
	u.die()
	for range 2 {
		n.Expect("abnormal", u.Request(), "StaleInContainers", harness.PodUID, u.c.ID()[:12], "/data/sub")
		after := u.c.Mounts()
		if !slices.EqualFunc(before, after, sameID) {
			t.Errorf("the container had %v, and has %v", before, after)
		}
	}
	if strings.Contains(strings.Join(n.Table(), "\n"), "tmpfs "+u.MountPoint()) {
		t.Error("it came out of the container")
	}
	u.disk.SameTable(u.healthy)
}
