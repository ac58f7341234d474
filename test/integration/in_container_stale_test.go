package integration

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/test/harness"
)

// restartWith starts another server with other arguments.
func restartWith(n *harness.Node, args ...string) {
	n.T.Helper()
	n.Stop()
	n.Args = args
	n.Start()
}

// TestStaleInContainers reports a container with a dead volume while the host has a
// working one, whatever forbids the heal; a later call that is allowed to heals it.
func TestStaleInContainers(t *testing.T) {
	n := harness.NewNode(t, "--heal-containers=off").Start()
	u := newUsed(n)
	u.die()
	before := u.c.Mounts()
	stale := func(has ...string) {
		t.Helper()
		n.Expect("abnormal", u.Request(), append(has, "StaleInContainers", harness.PodUID, u.c.ID()[:12])...)
		u.disk.SameTable(u.healthy)
		if after := u.c.Mounts(); !slices.EqualFunc(before, after, sameID) {
			t.Errorf("the container had %v, and has %v", before, after)
		}
	}
	stale("--heal-containers=off")
	stale("--heal-containers=off")
	restartWith(n, "--mode=check")
	stale("--mode=check")
	restartWith(n)
	n.Expect("healed", u.Request(), "replace-in-container")
	u.works()
	n.Expect("healthy", u.Request())
	u.works()
}

// TestStaleFromBefore finds a container that has a dead volume when the server
// that healed the host is gone, and the driver has staged again several times.
func TestStaleFromBefore(t *testing.T) {
	n := harness.NewNode(t, "--heal-containers=off", "--standalone").Start()
	u := newUsed(n)
	for range 3 {
		u.die()
		n.Expect("abnormal", u.Request(), "StaleInContainers")
		u.disk.SameTable(u.healthy)
	}
	n.Kill()
	n.Args = []string{"--standalone"}
	n.Start()
	n.Expect("healed", u.Request(), "replace-in-container")
	u.works()
	n.Expect("healthy", u.Request())
}

// TestInContainerStartedLate heals containers that came while the volume was dead, and
// while others were healed.
func TestInContainerStartedLate(t *testing.T) {
	n := harness.NewNode(t)
	n.Pause = "replace-in-container/entered"
	n.Start()
	u := newUsed(n)
	u.disk.Kill()
	// A runtime finds the mount point itself dead, and starts nothing on it; what is
	// beneath a directory comes along unseen.
	above := func(name string) *harness.Container {
		return n.StartContainer(harness.ContainerSpec{
			Name:   name,
			Mounts: []harness.ContainerMount{{At: "/data", Source: filepath.Dir(u.MountPoint())}},
			Loop:   &harness.Loop{Read: "/data/mount/a", Write: "/data/mount/loop"},
		})
	}
	all := []*harness.Container{above("while it was dead")}
	u.disk.Restage()
	call := n.BeginAndStop(u.Request())
	all = append(all, above("while others were healed"))
	if a := call.LetGo(); a == nil {
		t.Fatal("no answer")
	}
	if a := n.Begin(u.Request()).LetGo(); a == nil || a.GetAbnormal() {
		t.Errorf("the next call got %v", a)
	}
	for _, late := range all {
		if got := late.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
			t.Errorf("the loop in a late container comes by this: %+v, and has met %q", got, late.Errors())
		}
	}
}

// seesShutdown returns the flags with which a server sees that an ext4 has shut itself
// down: where the kernel has no word for it, a write has to be allowed.
func seesShutdown() []string {
	if node.TellsShutdown() {
		return nil
	}
	return []string{"--standalone"}
}

// TestInContainerADisk has the disk of a volume vanish and come back. What a
// container has of an ext4 is healed only where that is asked for.
func TestInContainerADisk(t *testing.T) {
	needsBeneath(t)
	flags := seesShutdown()
	n := harness.NewNode(t, flags...).Start()
	v := n.NewVolume("ext4", "a disk inside")
	c := n.StartContainer(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}},
		Loop:   &harness.Loop{Read: "/data/a", Write: "/data/loop"},
	})
	n.Expect("healthy", v.Request())
	before := c.Mounts()
	shutdown(t, v.Staging)
	restageDisk(v, "")
	for range 2 {
		n.Expect("abnormal", v.Request(), "StaleInContainers", "only FUSE is healed", c.ID()[:12])
		if after := c.Mounts(); !slices.EqualFunc(before, after, sameID) {
			t.Errorf("the container had %v, and has %v", before, after)
		}
	}
	restartWith(n, append(flags, "--heal-containers=all")...)
	n.Expect("healed", v.Request(), "replace-in-container")
	if got := c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns || c.Starts() != 1 {
		t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, c.Errors())
	}
	n.Expect("healthy", v.Request())
}
