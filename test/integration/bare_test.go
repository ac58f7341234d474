package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestContainerOnBareDirectory starts a container while the bind is lost. After a
// heal, or after the driver binds again, the answer names the container until it has
// ended: it writes to the node's disk.
func TestContainerOnBareDirectory(t *testing.T) {
	rebind := func(v *harness.Volume) {
		v.Node.Expect("abnormal", v.Request(), "Done: rebind", "ContainerOnBareDirectory")
	}
	for name, c := range map[string]struct {
		fs, sub string
		heal    func(*harness.Volume)
	}{
		"ext4":        {"ext4", "", rebind},
		"tmpfs":       {"tmpfs", "", rebind},
		"by a driver": {"ext4", "", (*harness.Volume).PublishAgain},
		"a directory beneath": {"ext4", "sub", func(v *harness.Volume) {
			harness.Must(v.Node.T, os.Remove(filepath.Join(v.MountPoint(), "sub")))
			rebind(v)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			next := newNeighbour(n)
			v := n.NewVolume(c.fs, "lost for a while")
			n.Expect("healthy", v.Request())
			v.Unpublish()
			source := filepath.Join(v.MountPoint(), c.sub)
			harness.Mkdir(t, source)
			container := n.NewContainer(harness.PodUID, source)
			table := container.Table()
			c.heal(v)
			for range 2 {
				n.Expect("abnormal", v.Request(), "ContainerOnBareDirectory", container.ID()[:12], "node's disk")
			}
			n.Stop()
			n.Start()
			n.Expect("abnormal", v.Request(), "ContainerOnBareDirectory", container.ID()[:12])
			if c.sub == "" {
				container.SameTable(table)
			}
			next.untouched()
			container.Kill()
			n.Expect("healthy", v.Request())
			n.Expect("healthy", v.Request())
		})
	}
}

// TestTargetNotEmpty loses a bind, and a file is written into the bare directory. The
// directory is not covered and not changed until it is empty.
func TestTargetNotEmpty(t *testing.T) {
	for _, fs := range []string{"ext4", "block"} {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			v := n.NewVolume(fs, "written beside")
			n.Expect("healthy", v.Request())
			healthy := n.Table()
			v.Unpublish()
			written, remove := filepath.Join(v.MountPoint(), "written"), os.Remove
			if fs == "block" { // a file to bind on
				written, remove = v.MountPoint(), func(file string) error { return os.Truncate(file, 0) }
			}
			harness.Must(t, os.WriteFile(written, []byte("precious"), 0o600))
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), "NotMounted", "TargetNotEmpty", "Refused: rebind")
				n.SameTable(before)
				if raw, err := os.ReadFile(written); err != nil || string(raw) != "precious" {
					t.Errorf("what was written is %q, %v", raw, err)
				}
			}
			harness.Must(t, remove(written))
			n.Expect("healed", v.Request(), "rebind")
			n.SameTable(healthy)
		})
	}
}

// TestTargetDirectoryGone loses a bind with its directory. Only kubelet and the driver make
// a directory below pods: the server makes none.
func TestTargetDirectoryGone(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "without a directory")
	n.Expect("healthy", v.Request())
	healthy := n.Table()
	v.Unpublish()
	harness.Must(t, os.Remove(v.MountPoint()))
	lost := n.Table()
	byStaging := v.Request()
	byStaging.VolumePath = v.Staging
	for range 2 {
		if _, err := n.Call(v.Request()); status.Code(err) != codes.NotFound {
			t.Errorf("by its target: %v", err)
		}
		n.Expect("healthy", byStaging)
		n.SameTable(lost)
		if _, err := os.Lstat(v.MountPoint()); !os.IsNotExist(err) {
			t.Errorf("the target is there: %v", err)
		}
	}
	harness.Mkdir(t, v.MountPoint())
	v.PublishAgain()
	n.Expect("healthy", v.Request())
	n.SameTable(healthy)
}

// TestWrittenByAContainer has a container start on the bare directory and write there.
// The answer names the container and the directory, and the files stay.
func TestWrittenByAContainer(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "written to the node")
	n.Expect("healthy", v.Request())
	v.Unpublish()
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	if out, err := c.Exec("touch", "/data/file"); err != nil {
		t.Fatal(out, err)
	}
	n.Expect("abnormal", v.Request(), "TargetNotEmpty", "ContainerOnBareDirectory")
	if len(harness.Layers(t, v.MountPoint())) != 0 {
		t.Error("the files were covered")
	}
	v.PublishAgain()
	n.Expect("abnormal", v.Request(), "ContainerOnBareDirectory", c.ID()[:12])
	if out, err := c.Exec("ls", "/data"); err != nil || !strings.Contains(out, "file") {
		t.Errorf("the container has %q, %v", out, err)
	}
}
