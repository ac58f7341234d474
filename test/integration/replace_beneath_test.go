package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/test/harness"
)

// beneathInstants are those at which a worker stops that takes a dead mount away
// from beneath a live one.
var beneathInstants = []string{"beneath/checked", "beneath/exposed", "beneath/joined", "beneath/done"}

// covered is a volume whose driver found its mount dead, and mounted on top of it.
func covered(n *harness.Node, id string) *served {
	n.T.Helper()
	s := newServed(n, id).known()
	s.disk.RestageOver()
	return s
}

// TestTakeBeneath has the dead mounts beneath the live ones taken away, which keep
// their ids, beside a neighbour that nothing happened to. Nothing keeps the dead
// filesystem instances.
func TestTakeBeneath(t *testing.T) {
	for name, prepare := range map[string]func(n *harness.Node){
		"shared": func(*harness.Node) {},
		"slave and shared": func(n *harness.Node) {
			master := filepath.Join(n.Dir, "master")
			harness.Mkdir(t, master)
			harness.Must(t, unix.Mount(n.Kubelet, master, "", unix.MS_BIND, ""))
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SLAVE, ""))
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_SHARED, ""))
		},
		"from a namespace of its own": func(n *harness.Node) {
			n.Namespace = true
			n.Args = append(n.Args, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
		},
		"mounted twice": func(n *harness.Node) {
			again := filepath.Join(n.Dir, "again")
			harness.Mkdir(t, again)
			harness.Must(t, unix.Mount(n.Kubelet, again, "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			prepare(n)
			n.Start()
			next := newNeighbour(n)
			s := newServed(n, "a volume").known()
			for layers := 1; layers <= 3; layers++ {
				var died []host.Dev
				for range layers {
					died = append(died, s.disk.Dev())
					s.disk.RestageOver()
				}
				staged, published := harness.MountID(t, s.Staging), harness.MountID(t, s.Place())
				n.Expect("healed", s.Request(), "StackedMounts", "take-off-beneath")
				s.back()
				if harness.MountID(t, s.Staging) != staged || harness.MountID(t, s.Place()) != published {
					t.Error("the live mounts were touched")
				}
				n.Expect("healthy", s.Request())
				s.back()
				next.untouched()
				for _, dev := range died {
					harness.Eventually(t, "nobody has the dead instance any more", func() bool { return ended(dev) })
				}
			}
			s.Writable(s.Place())
		})
	}
}

// ended is true once the last mount of a FUSE filesystem is gone.
func ended(dev host.Dev) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/fs/fuse/connections/%d", dev.Minor))
	return os.IsNotExist(err)
}

// TestTakeBeneathThenReplace has a published mount that shares nothing with the
// staged one: it is replaced as soon as the staged one stands alone.
func TestTakeBeneathThenReplace(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume")
	harness.Must(t, unix.Mount("", s.Place(), "", unix.MS_PRIVATE, ""))
	s.known()
	s.disk.RestageOver()
	staged := harness.MountID(t, s.Staging)
	n.Expect("healed", s.Request(), "take-off-beneath", "replace")
	s.back()
	if harness.MountID(t, s.Staging) != staged {
		t.Error("the live mount was touched")
	}
	n.Expect("healthy", s.Request())
}

// TestTakeBeneathADeadOne has a driver that published on top of a dead mount, and
// after the next end of the daemon nothing but dead mounts at the place.
func TestTakeBeneathADeadOne(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume")
	harness.Must(t, unix.Mount("", s.Place(), "", unix.MS_PRIVATE, ""))
	s.known()
	s.die()
	harness.Must(t, unix.Mount(s.Staging, s.Place(), "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", s.Place(), "", unix.MS_PRIVATE, ""))
	s.die()
	n.Expect("healed", s.Request(), "take-off-beneath", "replace")
	s.back()
	n.Expect("healthy", s.Request())
}

// TestTakeBeneathAPublishedOne has a driver that publishes on top of a dead mount.
func TestTakeBeneathAPublishedOne(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume").known()
	s.die()
	harness.Must(t, unix.Mount(s.Staging, s.Place(), "", unix.MS_BIND, ""))
	live := harness.MountID(t, s.Place())
	n.Expect("healed", s.Request(), "StackedMounts", "take-off-beneath")
	s.back()
	if harness.MountID(t, s.Place()) != live {
		t.Error("the live mount was touched")
	}
	n.Expect("healthy", s.Request())
}

// TestTakeBeneathInUse has somebody use both: files of the dead one stay dead,
// those of the live one are not touched.
func TestTakeBeneathInUse(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "in use").known()
	keepOpen(t, filepath.Join(s.Place(), "a"))
	s.disk.RestageOver()
	held, err := os.Open(filepath.Join(s.Place(), "a"))
	harness.Must(t, err)
	defer held.Close()
	n.Expect("healed", s.Request())
	s.back()
	if _, err := held.Stat(); err != nil {
		t.Errorf("a file of the live mount: %v", err)
	}
}

// TestTakeBeneathHealsAContainer has a container that kept the dead mount: it gets
// what is staged once that stands alone.
func TestTakeBeneathHealsAContainer(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "a volume").known()
	c := n.NewContainer(harness.PodUID, s.Place())
	n.Expect("healthy", s.Request())
	s.disk.RestageOver()
	n.Expect("healed", s.Request(), "take-off-beneath", "replace-in-container")
	s.back()
	n.Expect("healthy", s.Request())
	c.Kill()
}

// TestTakeBeneathRefused has mounts beneath a live one that must stay.
func TestTakeBeneathRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		why     string
		prepare func(t *testing.T, n *harness.Node) (*served, func())
	}{
		"it answers": {"answers", func(t *testing.T, n *harness.Node) (*served, func()) {
			other, _ := n.NewFUSEDisk("another volume", harness.FUSEConfig{})
			sum := other.Sum(other.Staging)
			return stagedOver(n, other), func() {
				if other.Sum(other.Staging) != sum || other.Sum(other.Place()) != sum {
					t.Error("the other volume lost data")
				}
			}
		}},
		"it is silent": {"no answer", func(_ *testing.T, n *harness.Node) (*served, func()) {
			other, disk := n.NewFUSEDisk("another volume", harness.FUSEConfig{})
			s := stagedOver(n, other)
			disk.Freeze()
			return s, func() {}
		}},
		"nothing is shared": {"does not share its events", func(t *testing.T, n *harness.Node) (*served, func()) {
			harness.Must(t, unix.Mount("", n.Kubelet, "", unix.MS_PRIVATE, ""))
			return covered(n, "a volume"), func() {}
		}},
		"it would take something else": {"would also take", func(t *testing.T, n *harness.Node) (*served, func()) {
			elsewhere := following(t, n)
			s := covered(n, "a volume")
			for _, p := range []string{s.Staging, s.Place()} {
				over := elsewhere(p)
				for len(harness.Layers(t, over)) > 0 {
					harness.Must(t, unix.Unmount(over, unix.MNT_DETACH))
				}
				harness.Must(t, unix.Mount("foreign", over, "tmpfs", 0, ""))
			}
			return s, func() {}
		}},
		"it would leave nothing": {"nothing would be left", func(t *testing.T, n *harness.Node) (*served, func()) {
			elsewhere := following(t, n)
			s := newServed(n, "a volume").known()
			for _, p := range []string{s.Staging, s.Place()} {
				harness.Must(t, unix.Mount("", elsewhere(p), "", unix.MS_PRIVATE, ""))
			}
			s.disk.RestageOver()
			return s, func() {}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s, check := tc.prepare(t, n)
			n.Expect("abnormal", s.Request()) // what can be healed is
			before, ids := n.Table(), idsAt(t, s.Staging, s.Place())
			for range 2 {
				n.Expect("abnormal", s.Request(), "StackedMounts", "take-off-beneath", tc.why)
				n.SameTable(before)
				check()
			}
			if got := idsAt(t, s.Staging, s.Place()); fmt.Sprint(got) != fmt.Sprint(ids) {
				t.Errorf("the mounts %v became %v", ids, got)
			}
			if s.Sum(s.Staging) != s.sum {
				t.Error("the data differs")
			}
		})
	}
}

// stagedOver is a volume that is staged on top of another one.
func stagedOver(n *harness.Node, other *harness.Volume) *served {
	n.T.Helper()
	s := newServed(n, "a volume").known()
	s.disk.Unstage()
	harness.Must(n.T, unix.Mount(other.Staging, s.Staging, "", unix.MS_BIND, ""))
	harness.Must(n.T, unix.Mount("", s.Staging, "", unix.MS_PRIVATE, ""))
	s.disk.RestageOver()
	return s
}

// following mounts the kubelet root a second time, as a slave: it receives what is
// mounted there, and tells nothing. It gives the paths there.
func following(t *testing.T, n *harness.Node) func(p string) string {
	t.Helper()
	dir := filepath.Join(n.Dir, "following")
	harness.Mkdir(t, dir)
	harness.Must(t, unix.Mount(n.Kubelet, dir, "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", dir, "", unix.MS_SLAVE, ""))
	return func(p string) string { return dir + strings.TrimPrefix(p, n.Kubelet) }
}

// TestKillTakingBeneath kills worker and server at every instant.
func TestKillTakingBeneath(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range beneathInstants {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone")
				n.Pause = instant
				n.Start()
				s := covered(n, "vol at an instant")
				staged, published := harness.MountID(t, s.Staging), harness.MountID(t, s.Place())
				h := halfway{t: t, n: n, v: s.Volume, healthy: s.disk.Renumbered(s.healthy), Begun: n.BeginAndStop(s.Request())}
				if victim == "worker" {
					h.killWorker()
				} else {
					h.kill("server")
				}
				s.back()
				if harness.MountID(t, s.Staging) != staged || harness.MountID(t, s.Place()) != published {
					t.Error("the live mounts were touched")
				}
				n.Expect("healthy", s.Request())
			})
		}
	}
}

// TestDriverWhileTakingBeneath has the driver act at every instant. What it does
// stays, and the next call has all healed.
func TestDriverWhileTakingBeneath(t *testing.T) {
	for name, act := range map[string]func(s *served){
		"takes all off and stages": (*served).die,
		"mounts on top once more":  func(s *served) { s.disk.RestageOver() },
	} {
		for _, instant := range beneathInstants {
			t.Run(name+" at "+instant, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone")
				n.Pause = instant
				n.Start()
				s := covered(n, "vol at an instant")
				h := halfway{t: t, n: n, v: s.Volume, Begun: n.BeginAndStop(s.Request())}
				act(s)
				staged := harness.MountID(t, s.Staging)
				h.Resume()
				if a := h.LetGo(); a == nil {
					t.Error(h.Err())
				}
				h.again()
				s.back()
				if harness.MountID(t, s.Staging) != staged {
					t.Error("what the driver staged was taken off")
				}
				n.Expect("healthy", s.Request())
			})
		}
	}
}
