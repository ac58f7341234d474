package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// sameID is true for the same mount, as long as none has ended meanwhile.
func sameID(a, b facts.Mount) bool { return a.OldID == b.OldID && a.OldParent == b.OldParent }

// TestInContainerSubPath heals a container that has a directory and a file of the
// volume, each by a subPath.
func TestInContainerSubPath(t *testing.T) {
	n := harness.NewNode(t).Start()
	s := newServed(n, "subPaths inside")
	u := s.usedBy(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{
			{At: "/data", Source: s.bindSubPath("sub/deep", "0")},
			{At: "/file", Source: s.bindSubPath("sub/b", "1")},
			{At: "/etc/config", Source: s.bindSubPath("a", "2"), Options: []string{"ro"}},
		},
		Loop: &harness.Loop{Read: "/file", Write: "/data/loop"},
	})
	needsBeneath(t)
	for range 2 {
		s.disk.Kill()
		for _, name := range []string{"a", "sub", "sub/b", "sub/deep"} { // the kernel drops a name that nobody answers for
			_, _ = os.Lstat(filepath.Join(s.Staging, name))
		}
		s.disk.Restage()
		n.Expect("healed", u.Request(), "StaleInContainers", "volume-subpaths")
		u.works()
		if out, err := u.c.Exec("cat", "/etc/config"); err != nil || !strings.Contains(out, "first") {
			t.Errorf("a file has %q, %v", out, err)
		}
		if out, err := u.c.Exec("sh", "-c", "echo x >>/etc/config"); err == nil {
			t.Errorf("a read-only file can be written to: %q", out)
		}
		if entries, err := u.c.Exec("ls", "/data"); err != nil || entries != "c\nloop\n" {
			t.Errorf("the directory has %q, %v", entries, err)
		}
		n.Expect("healthy", u.Request())
	}
}

// TestInContainerLostSubPath leaves a container alone whose subPath is gone from the
// volume, or leads elsewhere by now.
func TestInContainerLostSubPath(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, disk string){
		"gone": func(*testing.T, string) {},
		"link": func(t *testing.T, disk string) {
			harness.Must(t, os.Symlink("moved", filepath.Join(disk, "sub")))
		},
		"link to the host": func(t *testing.T, disk string) {
			harness.Must(t, os.Symlink("/etc", filepath.Join(disk, "sub")))
		},
		"file": func(t *testing.T, disk string) {
			harness.Must(t, os.WriteFile(filepath.Join(disk, "sub"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			s := newServed(n, "lost inside")
			whole := s.usedBy(harness.ContainerSpec{Name: "whole", Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint()}}})
			// Not kubelet's subPath: its mount on the host is lost, too.
			part := s.usedBy(harness.ContainerSpec{
				Name:   "part",
				Mounts: []harness.ContainerMount{{At: "/data", Source: filepath.Join(s.MountPoint(), "sub")}},
				Loop:   &harness.Loop{Read: "/data/b", Write: "/data/loop"},
			})
			before := part.c.Mounts()
			s.disk.Kill()
			harness.Must(t, os.Rename(filepath.Join(s.disk.Backing, "sub"), filepath.Join(s.disk.Backing, "moved")))
			spoil(t, s.disk.Backing)
			s.disk.Restage()
			for range 2 {
				n.Expect("abnormal", s.Request(), "StaleInContainers", part.c.ID()[:12])
				whole.works()
				if got := part.c.AwaitTurns(); got.Reads != 0 || got.Writes != 0 {
					t.Errorf("who has lost a directory comes by this: %+v", got)
				}
				part.onlyDead()
				if after := part.c.Mounts(); !slices.EqualFunc(before, after, sameID) {
					t.Errorf("who has lost a directory had %v, and has %v", before, after)
				}
			}
		})
	}
}
