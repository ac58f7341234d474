package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceWanted replaces a dead mount, without --standalone, only while a
// container of the pod has it mounted.
func TestReplaceWanted(t *testing.T) {
	n := harness.NewNode(t).Start()
	s := newServed(n, "wanted").known()
	unrelated := n.NewContainer(harness.UnrelatedPod, s.MountPoint())
	s.die()
	dead := n.Table()
	n.Expect("abnormal", s.Request(), "Disconnected", "no running container")
	n.SameTable(dead)
	unrelated.Kill()
	n.Expect("abnormal", s.Request(), "Disconnected", "no running container")
	n.SameTable(dead)

	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	s.PublishAgain()
	c := n.NewContainer(harness.PodUID, s.MountPoint())
	n.Expect("healthy", s.Request())
	s.die()
	n.Expect("healed", s.Request(), "replace")
	s.back()

	s.die()
	c.Kill()
	n.Expect("abnormal", s.Request(), "no running container")
}

// TestUnwantedWhileReplacing ends the container at every instant of a
// replacement, and has the driver unmount then and delete the tree afterwards,
// however late. Until the last question, right before finalize, the mount point of a
// pod that is gone is not healed.
func TestUnwantedWhileReplacing(t *testing.T) {
	for way, name := range []string{"the umount comes at once", "the umount comes later"} {
		umount := way == 0
		for i, instant := range replaceInstants {
			if finalizes := !strings.HasPrefix(instant, "replace/"); finalizes && !umount || !finalizes && !inTurn(i, way, 2) {
				continue // in finalize it makes no difference
			}
			t.Run(name+" at "+instant, func(t *testing.T) {
				n := harness.NewNode(t)
				n.Pause = instant
				n.Start()
				s := newServed(n, "unwanted")
				c := n.NewContainer(harness.PodUID, s.MountPoint())
				s.known()
				s.die()
				call := n.BeginAndStop(s.Request())
				c.Kill()
				if umount {
					harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
				}
				call.Resume()
				a := call.LetGo()
				if strings.HasPrefix(instant, "replace/") {
					if a != nil && !a.GetAbnormal() {
						t.Errorf("the mount point of a pod that is gone was healed: %v", a)
					}
					for _, m := range harness.Layers(t, s.MountPoint()) {
						if s.writable(m) {
							t.Errorf("a mount there is %s", m.Attr)
						}
					}
				}
				remove := unpublishers["umount, delete the tree"]
				if umount {
					remove = removeAll
				}
				_ = remove(s.MountPoint())
				if s.Sum(s.disk.Backing) != s.sum {
					t.Fatal("the volume lost data")
				}
				harness.Eventually(t, "kubelet's next tries succeed", func() bool {
					return unpublishers["umount, delete the tree"](s.MountPoint()) == nil
				})
				if s.Sum(s.disk.Backing) != s.sum {
					t.Fatal("the volume lost data")
				}
			})
		}
	}
}
