package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestInContainerFromAnotherNamespace heals from a server in a mount namespace of its
// own, as the DaemonSet's.
func TestInContainerFromAnotherNamespace(t *testing.T) {
	n := harness.NewNode(t, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
	n.Namespace = true
	n.Start()
	u := newUsed(n, "rslave")
	u.die()
	n.Expect("healed", u.Request(), "replace-in-container")
	u.works()
	n.Expect("healthy", u.Request())
}

// TestInContainerPaused heals a container whose processes are stopped: they are not
// needed.
func TestInContainerPaused(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	u.c.Freeze()
	u.die()
	n.Expect("healed", u.Request(), "replace-in-container")
	n.Expect("healthy", u.Request())
	u.c.Thaw()
	u.works()
}

// TestInContainerNestedVolume copies another volume that a container has mounted
// inside this one, and heals that one when its own daemon dies.
func TestInContainerNestedVolume(t *testing.T) {
	needsDetachedTrees(t)
	n := harness.NewNode(t).Start()
	v, d := n.NewFUSEDisk("outer", harness.FUSEConfig{Valid: longEnough})
	outer, inner := &served{Volume: v, disk: d}, newServed(n, "inner")
	u := outer.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{
		{At: "/data", Source: outer.MountPoint()}, {At: "/data/sub", Source: inner.MountPoint()},
	}})
	inner.known()
	outer.known()
	outer.die()
	n.Expect("healed", outer.Request(), "replace-in-container")
	if out, err := u.c.Exec("cat", "/data/a", "/data/sub/a"); err != nil || out != "outer firstinner first" {
		t.Errorf("the container has %q, %v", out, err)
	}
	u.c.SameTable(u.table)
	n.Expect("healthy", outer.Request())
	inner.die()
	n.Expect("healed", inner.Request(), "StaleInContainers", "/data/sub")
	if out, err := u.c.Exec("cat", "/data/a", "/data/sub/a"); err != nil || out != "outer firstinner first" {
		t.Errorf("the container has %q, %v", out, err)
	}
	if got := u.c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
		t.Errorf("the outer volume comes by this: %+v", got)
	}
}

// TestInContainerLeftAlone changes nothing in a container that has done something of
// its own with the volume's mount, and says that it is stale.
func TestInContainerLeftAlone(t *testing.T) {
	for name, do := range map[string]func() error{
		"mounted on itself":      func() error { return unix.Mount("/data", "/data", "", unix.MS_BIND, "") },
		"another one on top":     func() error { return unix.Mount("/data/sub", "/data", "", unix.MS_BIND, "") },
		"on a mount that shares": func() error { return unix.Mount("", "/", "", unix.MS_SHARED, "") },
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			u := newUsed(n)
			u.c.InMounts(do)
			before := u.c.Mounts()
			u.die()
			for range 2 {
				n.Expect("abnormal", u.Request(), "StaleInContainers", u.c.ID()[:12])
				if after := u.c.Mounts(); !slices.EqualFunc(before, after, sameID) {
					t.Errorf("the container had %v, and has %v", before, after)
				}
			}
			u.disk.SameTable(u.healthy)
		})
	}
}

// TestInContainerHidden has something mounted over the volume in a container while the
// host is healed. What was beneath it is found when it shows again.
func TestInContainerHidden(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	other := u.usedBy(harness.ContainerSpec{Name: "other", Mounts: []harness.ContainerMount{{At: "/data", Source: u.MountPoint()}}})
	hide := func() error { return unix.Mount("/loop", "/data", "", unix.MS_BIND, "") }
	u.c.InMounts(hide)
	u.die()
	if _, err := n.Call(u.Request()); err != nil {
		t.Fatal(err)
	}
	other.works()
	u.c.InMounts(func() error { return unix.Unmount("/data", 0) })
	n.Expect("healed", u.Request(), "replace-in-container")
	if got := u.c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
		t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
	}
	n.Expect("healthy", u.Request())
}

// TestInContainerLeavesNothing heals a container again and again: in the end neither
// the server nor the ended filesystems hold anything.
func TestInContainerLeavesNothing(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	heal := func() {
		u.die()
		n.Expect("healed", u.Request(), "replace-in-container")
		n.Expect("healthy", u.Request())
	}
	for range 3 {
		heal()
	}
	keepsNothing(n, 6, func() {
		was := u.disk.Dev()
		heal()
		u.works()
		connection := filepath.Join("/sys/fs/fuse/connections", strconv.Itoa(int(was.Minor)))
		harness.Eventually(t, "the filesystem that ended is gone", func() bool {
			_, err := os.Stat(connection)
			return os.IsNotExist(err) || u.disk.Dev() == was
		})
	})
}

// TestInContainerOfADriverThatMountsOver has a driver, as JuiceFS, that mounts anew over its dead mount, and keeps only
// some of those: what the container got last is proven also when the host has it nowhere any more.
func TestInContainerOfADriverThatMountsOver(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	needsBeneath(t)
	for range 2 {
		u.disk.RestageOver()
		n.Expect("abnormal", u.Request(), "StackedMounts", "Done: replace-in-container")
		if got := u.c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns {
			t.Errorf("the loop in the container comes by this: %+v", got)
		}
		u.disk.Kill()
		harness.Must(t, unix.Unmount(u.Staging, unix.MNT_DETACH)) // the top, also of the target
	}
}
