package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestKillWorkerOnly kills the worker at every instant of a rebind, and asks the same
// server again, whose next workers do not stop.
func TestKillWorkerOnly(t *testing.T) {
	for _, instant := range threeOf(instants) {
		t.Run(instant, func(t *testing.T) { testKillWorker(t, "ext4", instant) })
	}
}

func testKillWorker(t *testing.T, fs, instant string) {
	h := stopRebind(t, fs, instant)
	h.KillWorker()
	if a := h.LetGo(); a == nil {
		t.Fatal("a lost worker is no error of the question")
	}
	h.again()
	h.n.SameTable(h.healthy)
	h.intact(h.v.MountPoint())
	h.v.Writable(h.v.MountPoint())
	h.n.Expect("healthy", h.v.Request())
}

// takingOff are the instants at which a worker can be stopped while it takes a
// duplicate off.
var takingOff = []string{"unmount-duplicate/checked", "unmount/matched", "unmount-duplicate/done"}

// TestDuplicateAgain unmounts two duplicates by the same server, whose worker is
// killed at an instant of the first.
func TestDuplicateAgain(t *testing.T) {
	for _, instant := range takingOff {
		t.Run(instant, func(t *testing.T) {
			h := stopUnmountDuplicate(t, instant)
			h.KillWorker()
			h.Answer()
			for range 2 {
				h.again()
				h.n.SameTable(h.healthy)
				placeholderOn(t, h.v.Staging, h.v.MountPoint())
			}
			h.intact(h.v.Staging)
		})
	}
}

// TestUnmountDuplicateOnlyOurs has the driver unmount once while a duplicate is
// unmounted: the driver's own mount stays.
func TestUnmountDuplicateOnlyOurs(t *testing.T) {
	var own uint64
	h := stopHealing(t, "ext4", "unmount-duplicate/checked", func(v *harness.Volume) {
		own = harness.MountID(t, v.MountPoint())
		placeholderOn(t, v.Staging, v.MountPoint())
	})
	harness.Must(t, unix.Unmount(h.v.MountPoint(), 0))
	h.Resume()
	if a := h.Answer(); a == nil || a.GetAbnormal() || strings.Contains(a.GetMessage(), "rebind") {
		t.Errorf("got %v", a)
	}
	if harness.MountID(t, h.v.MountPoint()) != own {
		t.Error("the driver's own mount was replaced")
	}
	h.n.SameTable(h.healthy)
}

// TestUnpublishDuringUnmountDuplicate has a driver unpublish while a duplicate is
// unmounted. Before the step, a driver that unmounts once and then deletes the tree
// without checking would delete through its own mount below, whatever we do.
func TestUnpublishDuringUnmountDuplicate(t *testing.T) {
	for name, unpublish := range unpublishers {
		for _, instant := range takingOff {
			if name != "mount-utils" && instant != "unmount-duplicate/done" {
				continue
			}
			t.Run(name+" at "+instant, func(t *testing.T) {
				var keeper string
				h := stopHealing(t, "ext4", instant, func(v *harness.Volume) {
					keeper = v.Keep()
					placeholderOn(t, v.Staging, v.MountPoint())
				})
				h.unpublished(unpublish, keeper)
				h.intact(h.v.Staging)
			})
		}
	}
}
