package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

// served is a volume that a FUSE daemon serves from a disk, as it was when the
// server saw it healthy.
type served struct {
	*harness.Volume
	disk *harness.FUSEDisk
	// healthy is the mount table, sum the data.
	healthy []string
	sum     string
}

// newServed makes a volume that the server does not know yet.
func newServed(n *harness.Node, id string) *served {
	n.T.Helper()
	v, d := n.NewFUSEDisk(id, harness.FUSEConfig{})
	return &served{Volume: v, disk: d}
}

// known has the server see the volume healthy, and keeps how it is then.
func (s *served) known() *served {
	s.Node.T.Helper()
	s.Node.Expect("healthy", s.Request())
	s.healthy, s.sum = s.Node.Table(), s.Sum(s.Staging)
	return s
}

// die kills the daemon, for which the driver starts another one: the published
// mount points stay dead.
func (s *served) die() {
	s.Node.T.Helper()
	if os.Getenv(coversDead) == "" {
		needsBeneath(s.Node.T)
	}
	s.disk.Kill()
	s.disk.Restage()
}

// back fails the test when anything is not as it was, but for the numbers.
func (s *served) back(mountPoints ...string) {
	s.Node.T.Helper()
	s.disk.SameTable(s.healthy)
	for _, mountPoint := range append(mountPoints, s.MountPoint(), s.disk.Backing) {
		if s.Sum(mountPoint) != s.sum {
			s.Node.T.Errorf("the data at %s differs", mountPoint)
		}
	}
}

// writable is true for a mount through which the data can be changed.
func (s *served) writable(m facts.Mount) bool {
	return m.Dev == s.disk.Dev() && !m.Attr.Has(facts.AttrReadOnly)
}

// TestReplace kills the daemon behind a volume. After one call the mount point has its
// data again, beside a neighbour that nothing happened to, however the kubelet
// root shares its mounts.
func TestReplace(t *testing.T) {
	for name, propagate := range map[string]func(n *harness.Node){
		"shared":  func(*harness.Node) {},
		"private": func(n *harness.Node) { harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_PRIVATE, "")) },
		"slave": func(n *harness.Node) {
			master := filepath.Join(n.Dir, "master")
			harness.Mkdir(t, master)
			harness.Must(t, unix.Mount(n.Kubelet, master, "", unix.MS_BIND, ""))
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SLAVE, ""))
		},
		"slave and shared": func(n *harness.Node) {
			master := filepath.Join(n.Dir, "master")
			harness.Mkdir(t, master)
			harness.Must(t, unix.Mount(n.Kubelet, master, "", unix.MS_BIND, ""))
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SLAVE, ""))
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SHARED, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			propagate(n)
			n.Start()
			next := newNeighbour(n)
			s := newServed(n, "a volume").known()
			for range 2 {
				s.die()
				n.Expect("healed", s.Request(), "Disconnected", "replace")
				s.back()
				n.Expect("healthy", s.Request())
				s.back()
				next.untouched()
			}
			s.Writable(s.MountPoint())
		})
	}
}

// TestReplaceInUse heals a mount point of which a process has a file open: that file
// stays dead, and nothing else.
func TestReplaceInUse(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "in use").known()
	held, err := os.Open(filepath.Join(s.MountPoint(), "a"))
	harness.Must(t, err)
	defer held.Close()
	s.die()
	n.Expect("healed", s.Request())
	s.back()
	if _, err := held.Stat(); err == nil {
		t.Error("a file that was open before came back to life: the test shows nothing")
	}
	n.Expect("healthy", s.Request())
}

// TestReplaceForSeveralPods heals every mount point whose container still runs, and
// of the others only the one that the request names.
func TestReplaceForSeveralPods(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "shared by pods")
	other := s.MountPointOf(harness.OtherPod)
	s.Publish(harness.OtherPod)
	s.known()

	c := n.NewContainer(harness.OtherPod, other)
	s.die()
	n.Expect("healed", s.Request(), "Disconnected", "replace")
	s.back(other)

	c.Kill()
	s.die()
	dead := harness.Layers(t, other)
	if a, err := n.Call(s.Request()); err != nil {
		t.Fatal(a, err)
	}
	if s.Sum(s.MountPoint()) != s.sum {
		t.Error("the mount point that the request names was not healed")
	}
	if got := harness.Layers(t, other); len(got) != 1 || got[0].OldID != dead[0].OldID {
		t.Errorf("nothing proves that the other pod wants it, and it has %v", got)
	}
	req := s.Request()
	req.VolumePath = other
	n.Expect("healed", req)
	s.back(other)
	n.Expect("healthy", s.Request())
}

// TestReplaceOnlyThisVolume heals one of several volumes whose daemons died. The
// others do not move: one of the same driver, and one of another driver that has
// the same handle and source.
func TestReplaceOnlyThisVolume(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "one of several").known()
	second := newServed(n, "a second one").known()
	foreign, foreignDisk := n.NewFUSEDisk("elsewhere", harness.FUSEConfig{Source: s.disk.Source()})
	for _, dir := range []string{filepath.Dir(foreign.MountPoint()), filepath.Dir(foreign.Staging)} {
		harness.Must(t, os.WriteFile(filepath.Join(dir, "vol_data.json"),
			[]byte(`{"driverName":"other.csi.example.com","volumeHandle":"one of several"}`), 0o600))
	}
	s.known()
	s.die()
	second.die()
	foreignDisk.Kill()
	foreignDisk.Restage()
	before := map[string]int{}
	for _, mountPoint := range []string{second.MountPoint(), second.Staging, foreign.MountPoint(), foreign.Staging} {
		before[mountPoint] = harness.Layers(t, mountPoint)[0].OldID
	}
	n.Expect("healed", s.Request())
	n.Expect("healthy", s.Request())
	for mountPoint, id := range before {
		if got := harness.Layers(t, mountPoint); len(got) != 1 || got[0].OldID != id {
			t.Errorf("another volume's mount at %s became %v", mountPoint, got)
		}
	}
	if s.Sum(s.MountPoint()) != s.sum {
		t.Error("the data differs")
	}
	n.Expect("healed", second.Request())
}
