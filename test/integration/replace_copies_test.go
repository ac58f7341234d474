package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceCopies heals a mount point that is seen from other mount namespaces too:
// those have the mounts that they had, none of them dead.
func TestReplaceCopies(t *testing.T) {
	for _, propagation := range []string{"unchanged", "slave"} {
		t.Run(propagation, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "seen from elsewhere")
			harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOEXEC, ""))
			other := harness.NewNamespace(t, propagation)
			s.known()
			before := other.At(s.MountPoint())
			if len(before) != 1 {
				t.Fatalf("elsewhere the mount point is %v", before)
			}
			for range 2 {
				s.die()
				n.Expect("healed", s.Request())
				s.back()
				if got := other.At(s.MountPoint()); fmt.Sprint(got) != fmt.Sprint(before) {
					t.Errorf("elsewhere the mount point is %v, before it was %v", got, before)
				}
				for _, m := range other.LayersAt(s.MountPoint()) {
					if m.Dev != s.disk.Dev() {
						t.Error("elsewhere the mount point is dead")
					}
				}
				n.Expect("healthy", s.Request())
			}
		})
	}
}

// TestReplaceReachesNoPrivateCopy leaves a mount namespace as it is that shares
// nothing with the host.
func TestReplaceReachesNoPrivateCopy(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "seen from elsewhere").known()
	other := harness.NewNamespace(t, "private")
	before := other.LayersAt(s.MountPoint())
	s.die()
	n.Expect("healed", s.Request())
	s.back()
	if got := other.LayersAt(s.MountPoint()); len(got) != 1 || got[0].OldID != before[0].OldID {
		t.Errorf("elsewhere the mount point is %v, before it was %v", got, before)
	}
}

// TestReplaceCopiesAfterAKill leaves nothing dead, and nothing read-only, in
// other mount namespaces when a replacement was killed at any instant.
func TestReplaceCopiesAfterAKill(t *testing.T) {
	for _, instant := range []string{"replace/beneath", "replace/copies", "replace/detached", "finalize", "finalize/copies", "unmark/set"} {
		t.Run(instant, func(t *testing.T) {
			var other harness.Namespace
			var before []string
			h, s := stopReplace(t, instant, func(s *served) {
				other = harness.NewNamespace(t, "slave")
				before = other.At(s.MountPoint())
			})
			h.kill("server")
			s.back()
			if got := other.At(s.MountPoint()); fmt.Sprint(got) != fmt.Sprint(before) {
				t.Errorf("elsewhere the mount point is %v, before it was %v", got, before)
			}
			for _, m := range other.LayersAt(s.MountPoint()) {
				if m.Dev != s.disk.Dev() {
					t.Error("elsewhere the mount point is dead")
				}
			}
		})
	}
}

// unrelatedMounts are the ways in which a process in a mount namespace of its own may
// have something else on the mount point.
var unrelatedMounts = map[string]func(ns harness.Namespace, mountPoint string){
	"over it": func(ns harness.Namespace, mountPoint string) { ns.Do("mount", "-t", "tmpfs", "unrelated", mountPoint) },
	"instead of it": func(ns harness.Namespace, mountPoint string) {
		ns.Do("umount", mountPoint)
		ns.Do("mount", "-t", "tmpfs", "unrelated", mountPoint)
	},
}

// unrelatedAt returns the id of the unrelated mount, 0 for nothing.
func unrelatedAt(ns harness.Namespace, mountPoint string) (id int) {
	for _, m := range ns.LayersAt(mountPoint) {
		if m.Source == "unrelated" {
			id = m.OldID
		}
	}
	return id
}

// TestReplaceLeavesUnrelatedMounts leaves alone what another process has mounted on the mount point in a
// mount namespace of its own. Others see the mount point healed, unless the unrelated mount
// stands where the dead mount was: then a umount that reached the others would
// take it along, and they keep what they had on top.
func TestReplaceLeavesUnrelatedMounts(t *testing.T) {
	for name, unrelated := range unrelatedMounts {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "covered elsewhere").known()
			usual, odd := harness.NewNamespace(t, "slave"), harness.NewNamespace(t, "slave")
			unrelated(odd, s.MountPoint())
			id, before := unrelatedAt(odd, s.MountPoint()), usual.At(s.MountPoint())
			for range 2 {
				s.die()
				if _, err := n.Call(s.Request()); err != nil {
					t.Fatal(err)
				}
				s.back()
				if got := unrelatedAt(odd, s.MountPoint()); got != id || id == 0 {
					t.Errorf("their mount %d is now %d", id, got)
				}
				got := usual.LayersAt(s.MountPoint())
				alone := len(got) == 1 && got[0].Dev == s.disk.Dev() && fmt.Sprint(usual.At(s.MountPoint())) == fmt.Sprint(before)
				if name == "over it" && !alone {
					t.Errorf("where nothing was in the way there is %v", got)
				}
				for _, m := range got {
					if !alone && s.writable(m) {
						t.Errorf("beneath a dead mount there is %v", m)
					}
				}
			}
		})
	}
}

// TestReplaceLeavesUnrelatedMountsAfterAKill is the same when the server is killed on the way.
func TestReplaceLeavesUnrelatedMountsAfterAKill(t *testing.T) {
	for name, unrelated := range unrelatedMounts {
		for _, instant := range []string{"replace/copies", "replace/detached", "replace/verified", "finalize/set"} {
			t.Run(name+" at "+instant, func(t *testing.T) {
				var odd harness.Namespace
				h, s := stopReplace(t, instant, func(s *served) {
					odd = harness.NewNamespace(t, "slave")
					unrelated(odd, s.MountPoint())
				})
				id := unrelatedAt(odd, s.MountPoint())
				h.n.Kill()
				h.Answer()
				h.restart()
				h.again()
				s.back()
				if got := unrelatedAt(odd, s.MountPoint()); got != id || id == 0 {
					t.Errorf("their mount %d is now %d", id, got)
				}
			})
		}
	}
}

// TestReplaceOnTheHostTwice heals the copy at a second mount of kubelet's root
// too.
func TestReplaceOnTheHostTwice(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	second := filepath.Join(n.Dir, "second")
	harness.Mkdir(t, second)
	harness.Must(t, unix.Mount(n.Kubelet, second, "", unix.MS_BIND, ""))
	s := newServed(n, "seen twice").known()
	s.die()
	n.Expect("healed", s.Request())
	s.back()
}
