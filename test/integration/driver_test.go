package integration

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/csi-addons/node-healer/test/harness"
)

// removeAll is what careless drivers do to a target after its umount.
func removeAll(path string) error { return os.RemoveAll(path) }

// The ways in which drivers implement NodeUnpublishVolume.
var unpublishers = map[string]func(target string) error{
	// As k8s.io/mount-utils has it, and most drivers use it.
	"mount-utils": func(target string) error {
		return mount.CleanupMountPoint(target, mount.New(""), true)
	},
	// A umount whose "not mounted" is ignored, then the tree is deleted.
	"umount, delete the tree": func(target string) error {
		if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return removeAll(target)
	},
	// The worst: whatever umount says, the tree is deleted.
	"umount lazily, delete the tree": func(target string) error {
		_ = unix.Unmount(target, unix.MNT_DETACH)
		return removeAll(target)
	},
}

// unpublished has a driver unpublish the mount point while the step is paused: the
// data, seen at keeper, survives, and kubelet's next try brings the unpublishing
// to its end.
func (h halfway) unpublished(unpublish func(target string) error, keeper string) {
	h.t.Helper()
	first := unpublish(h.v.MountPoint())
	h.Resume()
	h.LetGo()
	if h.v.Sum(keeper) != h.sum {
		h.t.Fatalf("the volume lost data; the driver got %v", first)
	}
	harness.Eventually(h.t, "kubelet's next tries succeed", func() bool { return unpublish(h.v.MountPoint()) == nil })
	h.intact(keeper)
}

// TestUnpublishAtEveryInstant has a driver unpublish the mount point while a step is
// at work on it, at every instant.
func TestUnpublishAtEveryInstant(t *testing.T) {
	unpublishAt(t, instants, func(t *testing.T, instant string, unpublish func(target string) error) {
		h := stopRebind(t, "ext4", instant)
		h.unpublished(unpublish, h.v.Staging)
	})
}

// unpublishAt runs test at every instant: with each of the unpublishers in a full run, or
// else with one of them in turn.
func unpublishAt(t *testing.T, instants []string, test func(t *testing.T, instant string, unpublish func(target string) error)) {
	names := slices.Sorted(maps.Keys(unpublishers))
	for i, instant := range instants {
		for j, name := range names {
			if inTurn(i, j, len(names)) {
				t.Run(name+" at "+instant, func(t *testing.T) { test(t, instant, unpublishers[name]) })
			}
		}
	}
}

// TestUnpublishAroundTheStep is the hardest order: the umount comes before the step
// and finds nothing, the deletion comes at an instant of it. Only the proof that the
// mount point is wanted helps, and it ends with the container. It is checked for the
// last time before finalize: for a container that ran then, the umount is still to
// come.
func TestUnpublishAroundTheStep(t *testing.T) {
	for _, instant := range instants {
		t.Run(instant, func(t *testing.T) {
			n := harness.NewNode(t)
			n.Pause = instant
			n.Start()
			v := n.NewVolume("ext4", "around")
			c := n.NewContainer(harness.PodUID, v.MountPoint())
			n.Expect("healthy", v.Request())
			sum := v.Sum(v.Staging)
			v.Unpublish()
			call := n.BeginAndStop(v.Request())
			c.Kill()
			remove := removeAll
			if !strings.HasPrefix(instant, "rebind/") {
				remove = unpublishers["umount, delete the tree"]
			}
			_ = remove(v.MountPoint())
			call.Resume()
			if a := call.Answer(); a != nil && !a.GetAbnormal() && strings.HasPrefix(instant, "rebind/") {
				t.Errorf("the mount point of a pod that is gone was healed: %v", a)
			}
			_ = remove(v.MountPoint())
			if got := v.Sum(v.Staging); got != sum {
				t.Fatal("the volume lost data")
			}
		})
	}
}

// TestPublishOnTop has the driver publish while a rebind finalizes: what then lies
// beneath the driver's mount is read-only, so that unpublishing once and
// deleting the tree loses nothing.
func TestPublishOnTop(t *testing.T) {
	for _, instant := range []string{"rebind/verified", "finalize/checked", "finalize/alone", "finalize/copies", "unmark/checked", "unmark/alone"} {
		t.Run(instant, func(t *testing.T) {
			var other harness.Namespace
			h := stopHealing(t, "ext4", instant, func(v *harness.Volume) {
				other = harness.NewNamespace(t, "unchanged")
				v.Unpublish()
			})
			h.v.PublishAgain()
			h.Resume()
			if a := h.Answer(); a == nil || !a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
			harness.Must(t, unix.Unmount(h.v.MountPoint(), unix.MNT_DETACH))
			for _, attr := range other.At(h.v.MountPoint()) {
				if !strings.HasPrefix(attr, "ro,") {
					t.Errorf("elsewhere what was beneath is %s", attr)
				}
			}
			_ = removeAll(h.v.MountPoint())
			h.intact(h.v.Staging)
		})
	}
}

// TestPublishDuringUnmountDuplicate has the driver bind once more in the instant between
// the last check and the umount, which knows names only: the loss is reported.
func TestPublishDuringUnmountDuplicate(t *testing.T) {
	h := stopUnmountDuplicate(t, "unmount/matched")
	h.v.PublishAgain()
	h.Resume()
	if a := h.Answer(); a == nil || !a.GetAbnormal() || !strings.Contains(a.GetMessage(), "another mount") {
		t.Errorf("got %v", a)
	}
}
