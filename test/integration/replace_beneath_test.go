package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// onlyReported calls several times: the volume is reported as stacked, no mount
// changes, and the server keeps nothing for having looked.
func (s *served) onlyReported(has ...string) {
	n, t := s.Node, s.Node.T
	t.Helper()
	table, ids := n.Table(), idsAt(t, s.Staging, s.MountPoint())
	has = append(has, "StackedMounts", "Nothing was changed")
	call := func() {
		t.Helper()
		n.Expect("abnormal", s.Request(), has...)
		n.SameTable(table)
		if got := idsAt(t, s.Staging, s.MountPoint()); !slices.Equal(got, ids) {
			t.Errorf("the mounts %v became %v", ids, got)
		}
	}
	call()
	keepsNothing(n, 5, call)
	if s.Sum(s.Staging) != s.sum {
		t.Error("the data differs")
	}
}

// TestDeadMountBeneath has a driver that found its mount dead and mounted on top of
// it: the dead mounts are reported, and all mounts stay as they are.
func TestDeadMountBeneath(t *testing.T) {
	for name, prepare := range map[string]func(n *harness.Node){
		"shared": func(*harness.Node) {},
		"from a namespace of its own": func(n *harness.Node) {
			n.Namespace = true
			n.Args = append(n.Args, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			prepare(n)
			n.Start()
			next := newNeighbour(n)
			s := newServed(n, "a volume").known()
			for range 2 {
				s.disk.RestageOver()
				s.onlyReported("covers another filesystem instance")
				next.untouched()
			}
			s.Writable(s.MountPoint())
		})
	}
}

// TestHungMountBeneath has mounts at the bottom that must not be asked: one whose
// daemon is stopped, and one of another volume, which loses nothing.
func TestHungMountBeneath(t *testing.T) {
	for name, breaks := range map[string]func(*harness.FUSEDisk){
		"it answers": func(*harness.FUSEDisk) {},
		"it hangs":   (*harness.FUSEDisk).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			other, disk := n.NewFUSEDisk("another volume", harness.FUSEConfig{})
			sum := other.Sum(other.Staging)
			s := newServed(n, "a volume").known()
			s.disk.Unstage()
			harness.Must(t, unix.Mount(other.Staging, s.Staging, "", unix.MS_BIND, ""))
			harness.Must(t, unix.Mount("", s.Staging, "", unix.MS_PRIVATE, ""))
			s.disk.RestageOver()
			breaks(disk)
			if _, err := n.Call(s.Request()); err != nil { // what can be healed is
				t.Fatal(err)
			}
			s.onlyReported()
			disk.Thaw()
			if other.Sum(other.Staging) != sum || other.Sum(other.MountPoint()) != sum {
				t.Error("the other volume lost data")
			}
		})
	}
}

// TestDeadMountBeneathTheMountPointHeals has a published mount that shares nothing with
// the staged one: it gets what works, whatever lies beneath that.
func TestDeadMountBeneathTheMountPointHeals(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume")
	harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
	s.known()
	s.disk.RestageOver()
	staged := idsAt(t, s.Staging)
	n.Expect("abnormal", s.Request(), "Disconnected", "Done: replace", "StackedMounts")
	if got := s.Sum(s.MountPoint()); got != s.sum {
		t.Error("the data at the mount point differs")
	}
	if got := idsAt(t, s.Staging); !slices.Equal(got, staged) {
		t.Errorf("the staged mounts %v became %v", staged, got)
	}
	s.onlyReported()
}

// TestDeadMountBeneathAPublishedOne has a driver that publishes on top of a dead
// mount. After the next end of the daemon nothing but dead mounts stand there, which
// stay.
func TestDeadMountBeneathAPublishedOne(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume").known()
	s.die()
	harness.Must(t, unix.Mount(s.Staging, s.MountPoint(), "", unix.MS_BIND, ""))
	s.onlyReported("covers another filesystem instance")
	s.die()
	s.onlyReported("Disconnected")
}

// TestDeadMountBeneathInUse has a process use both: files of the dead one stay dead,
// those of the live one are not touched.
func TestDeadMountBeneathInUse(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "in use").known()
	keepOpen(t, filepath.Join(s.MountPoint(), "a"))
	s.disk.RestageOver()
	open, err := os.Open(filepath.Join(s.MountPoint(), "a"))
	harness.Must(t, err)
	defer open.Close()
	s.onlyReported()
	if _, err := open.Stat(); err != nil {
		t.Errorf("a file of the live mount: %v", err)
	}
}

// TestDeadMountBeneathAndInAContainer heals the container that kept the dead mount,
// while the host's mount points stay stacked.
func TestDeadMountBeneathAndInAContainer(t *testing.T) {
	for _, standalone := range []bool{true, false} {
		t.Run(fmt.Sprintf("standalone %v", standalone), func(t *testing.T) {
			n := harness.NewNode(t, fmt.Sprintf("--standalone=%v", standalone)).Start()
			s := newServed(n, "a volume").known()
			c := n.NewContainer(harness.PodUID, s.MountPoint())
			n.Expect("healthy", s.Request())
			for range 2 {
				s.disk.RestageOver()
				ids := idsAt(t, s.Staging, s.MountPoint())
				n.Expect("abnormal", s.Request(), "StaleInContainers", "replace-in-container", "StackedMounts")
				if got := c.MountsAt("/data"); len(got) != 1 || got[0].Dev != s.disk.Dev() || got[0].Attr.Has(facts.AttrReadOnly) {
					t.Errorf("the container has %v", got)
				}
				if got := idsAt(t, s.Staging, s.MountPoint()); !slices.Equal(got, ids) {
					t.Errorf("the host's mounts %v became %v", ids, got)
				}
				s.onlyReported()
			}
		})
	}
}
