package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// servedClaimed is a volume of a FUSE daemon that a pod of the API has.
func (m *member) servedClaimed(id string) (*claimed, *harness.FUSEDisk) {
	m.T.Helper()
	v, d := m.NewFUSEDisk(id, harness.FUSEConfig{})
	return m.claimed(v), d
}

// TestReplaceForAPod replaces a dead mount without a running container, as long
// as the API says that the pod wants the volume here.
func TestReplaceForAPod(t *testing.T) {
	m := newMember(t)
	m.Start()
	v, d := m.servedClaimed("wanted")
	m.Expect("healthy", v.Request())
	before, sum := m.Table(), v.Sum(v.MountPoint())
	d.Kill()
	d.Restage()
	m.Expect("healed", v.Request(), "Disconnected", "replace")
	d.SameTable(before)
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data differs")
	}

	cluster.Terminate(t, m.api, v.pod)
	d.Kill()
	d.Restage()
	dead := m.Table()
	m.Expect("abnormal", v.Request(), "Disconnected", "Refused: replace", "is terminating")
	m.SameTable(dead)
}

// TestPodThatStartsToTerminateWhileReplacing has a pod go while its mount is
// replaced. The new mount never becomes writable, and a driver that only
// deletes, because it has unmounted before, deletes nothing of the volume.
func TestPodThatStartsToTerminateWhileReplacing(t *testing.T) {
	for _, instant := range replaceInstants {
		if !strings.HasPrefix(instant, "replace/") {
			continue // it is asked for the last time right before finalize
		}
		t.Run(instant, func(t *testing.T) {
			m := newMember(t)
			m.Pause = instant
			m.Start()
			v, d := m.servedClaimed("race")
			m.Expect("healthy", v.Request())
			sum := v.Sum(v.Staging)
			d.Kill()
			d.Restage()
			call := m.BeginAndStop(v.Request())
			cluster.Terminate(t, m.api, v.pod)
			harness.Must(t, unix.Unmount(v.MountPoint(), unix.MNT_DETACH))
			call.Resume()
			if a := call.LetGo(); a == nil || !a.GetAbnormal() {
				t.Errorf("got %v, %v\n%s", a, call.Err(), m.Log)
			}
			_ = removeAll(v.MountPoint())
			if v.Sum(d.Backing) != sum {
				t.Fatal("the volume lost data")
			}
			harness.Eventually(t, "kubelet's next tries succeed", func() bool {
				return unpublishers["umount, delete the tree"](v.MountPoint()) == nil
			})
			if v.Sum(d.Backing) != sum {
				t.Fatal("the volume lost data")
			}
		})
	}
}
