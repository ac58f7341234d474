package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// used is a volume that a process in a container reads and writes all the time,
// with the container's mount table of when all was well.
type used struct {
	*served
	c     *harness.Container
	table []string
}

// newUsed starts a container that has a volume at /data, with these options.
func newUsed(n *harness.Node, options ...string) *used {
	n.T.Helper()
	s := newServed(n, "in use inside")
	return s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{{At: "/data", Source: s.MountPoint(), Options: options}}})
}

// usedBy starts a container with a loop on its first mount.
func (s *served) usedBy(spec harness.ContainerSpec) *used {
	s.Node.T.Helper()
	if spec.Loop == nil {
		spec.Loop = &harness.Loop{Read: spec.Mounts[0].At + "/a", Write: spec.Mounts[0].At + "/loop"}
	}
	c := s.Node.StartContainer(spec)
	s.known()
	return &used{served: s, c: c, table: c.Table()}
}

// works fails the test unless the same process as before has its data, and all
// mounts there and on the host are as they were, but for the numbers.
func (u *used) works() {
	t := u.Node.T
	t.Helper()
	readOnly := slices.ContainsFunc(u.c.MountsAt("/data"), func(m facts.Mount) bool { return m.Attr.Has(facts.AttrReadOnly) })
	switch got := u.c.AwaitTurns(); {
	case got.Reads != got.Turns, !readOnly && got.Writes != got.Turns, readOnly && got.Writes != 0:
		t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, u.c.Errors())
	}
	if u.c.Starts() != 1 {
		t.Errorf("the loop was started %d times", u.c.Starts())
	}
	u.onlyDead()
	u.c.SameTable(u.table)
	u.disk.SameTable(u.healthy)
	for _, m := range u.c.Mounts() {
		if m.FSType == "fuse.diskfs" && m.Dev != u.disk.Dev() {
			t.Errorf("a mount in the container at %s is of %s", m.Path, m.Dev)
		}
	}
}

// deaths is what who uses a volume is told while its daemon dies, and later.
var deaths = []string{"Transport endpoint is not connected", "Software caused connection abort", "Input/output error"}

// onlyDead is the function, for the loop's container.
func (u *used) onlyDead() { u.Node.T.Helper(); onlyDead(u.Node.T, u.c) }

// onlyDead fails the test when the loop in a container has met anything but a
// volume that is dead or read-only: not an empty directory, above all. The known
// errors have another cause.
func onlyDead(t testing.TB, c *harness.Container, known ...string) {
	t.Helper()
	for _, e := range c.Errors() {
		if slices.Contains(known, e) {
			continue
		}
		if e == "read \n" {
			continue // of a read(2) that failed in a file that was open the shell says nothing
		}
		dead := slices.ContainsFunc(deaths, func(death string) bool { return strings.Contains(e, death) })
		readOnly := strings.HasPrefix(e, "write") && strings.Contains(e, "Read-only file system")
		if !dead && !readOnly {
			t.Errorf("the loop in the container met %q", e)
		}
	}
}

// TestInContainer kills the daemon behind a volume that a running container uses. One
// call, and the same process has its data again, through a mount with the
// attributes that its own had.
func TestInContainer(t *testing.T) {
	for name, options := range map[string][]string{
		"private":           {"rprivate"},
		"slave":             {"rslave"},
		"shared":            {"rshared"},
		"read-only":         {"rprivate", "ro"},
		"read-only slave":   {"rslave", "ro"},
		"attributes":        {"rprivate", "nosuid", "nodev", "noexec", "noatime", "nodiratime"},
		"read-only, shared": {"rshared", "ro", "noexec"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			next := newNeighbour(n)
			u := newUsed(n, options...)
			for range 2 {
				u.die()
				n.Expect("healed", u.Request(), "Disconnected", "replace-in-container", u.c.ID()[:12])
				u.works()
				n.Expect("healthy", u.Request())
				u.works()
				next.untouched()
			}
		})
	}
}

// TestInContainerSeveral heals a container that has the volume several times, and
// others: of the same pod, and of another one.
func TestInContainerSeveral(t *testing.T) {
	n := harness.NewNode(t).Start()
	s := newServed(n, "has many")
	s.Publish(harness.OtherPod)
	spec := func(pod, name string) harness.ContainerSpec {
		mountPoint := s.MountPointOf(pod)
		return harness.ContainerSpec{Pod: pod, Name: name, Mounts: []harness.ContainerMount{
			{At: "/data", Source: mountPoint},
			{At: "/read", Source: mountPoint, Options: []string{"ro", "noexec"}},
			{At: "/all/the/way/down", Source: filepath.Join(mountPoint, "sub"), Options: []string{"rslave"}},
			{At: "/file", Source: filepath.Join(mountPoint, "sub", "b")},
			{At: "/above", Source: filepath.Dir(mountPoint), Options: []string{"rslave", "ro"}},
		}}
	}
	all := []*used{}
	for _, pod := range []string{harness.PodUID, harness.OtherPod} {
		for _, name := range []string{"one", "two"} {
			all = append(all, s.usedBy(spec(pod, name)))
		}
	}
	s.die()
	n.Expect("healed", s.Request(), "StaleInContainers")
	for _, u := range all {
		u.works()
		for path, content := range map[string]string{"/read/a": "first", "/all/the/way/down/b": "second", "/file": "second", "/above/mount/a": "first"} {
			if out, err := u.c.Exec("cat", path); err != nil || !strings.Contains(out, content) {
				t.Errorf("the container has %q at %s, %v", out, path, err)
			}
		}
	}
	n.Expect("healthy", s.Request())
}

// TestInContainerPropagation mounts something in a volume after it was healed, on the
// host and inside: the other side sees it exactly as before.
func TestInContainerPropagation(t *testing.T) {
	for propagation, want := range map[string]struct{ in, out bool }{
		"rprivate": {},
		"rslave":   {in: true},
		"rshared":  {in: true, out: true},
	} {
		t.Run(propagation, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			u := newUsed(n, propagation)
			for _, dead := range []bool{false, true} {
				if dead {
					u.die()
					n.Expect("healed", u.Request())
				}
				harness.Must(t, unix.Mount("tmpfs", u.MountPoint()+"/sub", "tmpfs", 0, ""))
				if got := len(u.c.MountsAt("/data/sub")) > 0; got != want.in {
					t.Errorf("dead before: %v: of the host's mount the container sees: %v", dead, got)
				}
				harness.Must(t, unix.Unmount(u.MountPoint()+"/sub", 0))
				u.c.InMounts(func() error { return unix.Mount("tmpfs", "/data/sub/deep", "tmpfs", 0, "") })
				if got := len(harness.Layers(t, u.MountPoint()+"/sub/deep")) > 0; got != want.out {
					t.Errorf("dead before: %v: of the container's mount the host sees: %v", dead, got)
				}
				u.c.InMounts(func() error { return unix.Unmount("/data/sub/deep", 0) })
				u.works()
			}
		})
	}
}
