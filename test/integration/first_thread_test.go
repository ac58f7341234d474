package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// loiter has uid 1000, in a container of a pod that has nothing to do with the volume,
// leave processes that have ended their first thread: one that is idle, and one that has
// a file open which is called as the device of FUSE is.
func loiter(n *harness.Node) {
	n.T.Helper()
	file := filepath.Join(n.Dir, "fuse")
	harness.Must(n.T, os.WriteFile(file, []byte("fuse_connection:\t1\n"), 0o644))
	c := n.StartContainer(harness.ContainerSpec{
		Pod: harness.UnrelatedPod, Name: "tenant", Mounts: []harness.ContainerMount{{At: "/bin/fuse", Source: file}},
	})
	user := c.NewUser()
	user.Do("firstless")
	user.Do("firstless", "/bin/fuse")
}

// TestRestageBesideLoiterers stages the only FUSE volume of a node anew, whatever the
// processes of a tenant do.
func TestRestageBesideLoiterers(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which process has a FUSE connection")
	n, d := restaging(t, "unmount-first", csidriver.Mode{Stage: csidriver.DoesNothing})
	loiter(n)
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	sum := v.Sum(v.MountPoint())
	for range 2 {
		d.KillDaemon(v)
		n.Expect("healed", d.Request(v), "restage of the staging mount point; ")
	}
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}
}

// TestAbortBesideLoiterers aborts the connection of a daemon that hangs, whatever the
// processes of a tenant do.
func TestAbortBesideLoiterers(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	n := harness.NewNode(t, "--standalone", "--probe-timeout=1s", "--fuse-abort").Start()
	loiter(n)
	v, fs := n.NewFUSEVolume("served", faultfs.Config{})
	soon(n, "healthy", v.Request())
	fs.Hang()
	harness.Eventually(t, "the connection is aborted", func() bool {
		return strings.Contains(n.Message(v.Request()), "Done: abort-connection")
	})
}

// TestInContainerWithoutItsFirstThread heals a container whose only process has ended its
// first thread: it lives, and reads the volume.
func TestInContainerWithoutItsFirstThread(t *testing.T) {
	n := harness.NewNode(t).Start()
	s := newServed(n, "in use by a thread")
	c := n.StartContainer(harness.ContainerSpec{Firstless: true, Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
	file := filepath.Join(c.Thread(), "root/data/a")
	want, err := os.ReadFile(file)
	harness.Must(t, err)
	s.known()
	for range 2 {
		s.die()
		if _, err := os.ReadFile(file); err == nil {
			t.Fatal("the volume is not dead in the container: the test shows nothing")
		}
		n.Expect("healed", s.Request(), "replace-in-container")
		if got, err := os.ReadFile(file); err != nil || string(got) != string(want) {
			t.Errorf("the container reads %d bytes, %v", len(got), err)
		}
		n.Expect("healthy", s.Request())
		s.back()
	}
}
