package integration

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestUnpublishWhileReplacing has a driver unpublish the mount point at every instant
// of a replacement: the data survives.
func TestUnpublishWhileReplacing(t *testing.T) {
	unpublishAt(t, replaceInstants, func(t *testing.T, instant string, unpublish func(target string) error) {
		h, s := stopReplace(t, instant)
		h.unpublished(unpublish, s.disk.Backing)
	})
}

// TestUnpublishWhileReplacingInUse is the same while a process has a file of the
// dead mount open, so that it has to be detached.
func TestUnpublishWhileReplacingInUse(t *testing.T) {
	for name, unpublish := range unpublishers {
		if name == "umount, delete the tree" {
			continue // that one stops at the first umount, which says busy
		}
		t.Run(name, func(t *testing.T) {
			h, s := stopReplace(t, "detach/matched", func(s *served) { keepOpen(t, filepath.Join(s.MountPoint(), "a")) })
			h.unpublished(unpublish, s.disk.Backing)
		})
	}
}

// publishers are the ways in which drivers implement NodePublishVolume where a
// dead mount is.
var publishers = map[string]func(staging, mountPoint string) error{
	"on top": func(staging, mountPoint string) error {
		return unix.Mount(staging, mountPoint, "", unix.MS_BIND, "")
	},
	"umount, publish": func(staging, mountPoint string) error {
		if err := unix.Unmount(mountPoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
		return unix.Mount(staging, mountPoint, "", unix.MS_BIND, "")
	},
}

// TestPublishWhileReplacing has a driver publish again at every instant of a
// replacement but the last, at which it is over. The driver's mount stays, and
// nothing beneath it is writable: a driver that unmounts once, and deletes the
// tree, loses nothing.
func TestPublishWhileReplacing(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(publishers)) {
		for j, instant := range replaceInstants {
			if instant == "unmark/set" || !inTurn(j, i, len(publishers)) {
				continue
			}
			t.Run(name+" at "+instant, func(t *testing.T) { testPublishWhileReplacing(t, publishers[name], instant) })
		}
	}
}

// TestPublishWhileReplacingInUse is the same while a process has a file of the
// dead mount open. Drivers that mount on top of a dead mount in that instant are
// none: what they mounted goes with it.
func TestPublishWhileReplacingInUse(t *testing.T) {
	testPublishWhileReplacing(t, publishers["umount, publish"], "detach/matched", func(s *served) {
		keepOpen(t, filepath.Join(s.MountPoint(), "a"))
	})
}

func testPublishWhileReplacing(t *testing.T, publish func(staging, mountPoint string) error, instant string, breaks ...func(*served)) {
	var other harness.Namespace
	h, s := stopReplace(t, instant, append(breaks, func(*served) { other = harness.NewNamespace(t, "unchanged") })...)
	harness.Must(t, publish(s.Staging, s.MountPoint()))
	theirs := harness.MountID(t, s.MountPoint())
	h.Resume()
	if a := h.LetGo(); a == nil {
		t.Error(h.Err())
	}
	if id := harness.MountID(t, s.MountPoint()); id != theirs {
		t.Errorf("the driver's mount %d is %d now", theirs, id)
	}
	h.intact(s.MountPoint())
	// Its umount finds another one beneath, if any.
	harness.Must(t, unix.Unmount(s.MountPoint(), unix.MNT_DETACH))
	for _, m := range slices.Concat(harness.Layers(t, s.MountPoint()), other.LayersAt(s.MountPoint())) {
		if s.writable(m) {
			t.Errorf("what was beneath is %s", m.Attr)
		}
	}
	_ = removeAll(s.MountPoint())
	h.intact(s.disk.Backing)
	harness.Eventually(t, "the next tries succeed", func() bool {
		return mount.CleanupMountPoint(s.MountPoint(), mount.New(""), true) == nil
	})
	h.intact(s.disk.Backing)
}
