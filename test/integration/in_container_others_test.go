package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestInContainerOnlyThisVolume heals one of three dead volumes in one container. A
// second one of the same driver does not move, nor does one of another driver
// that has the same handle, type and source; nor one that an unrelated container
// has, as it happens, of the same type and source.
func TestInContainerOnlyThisVolume(t *testing.T) {
	for _, args := range [][]string{nil, {"--standalone"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) { testInsideOnlyThisVolume(t, args) })
	}
}

func testInsideOnlyThisVolume(t *testing.T, args []string) {
	t.Helper()
	n := harness.NewNode(t, args...).Start()
	s := newServed(n, "one of them")
	second := newServed(n, "a second one")
	foreign, foreignDisk := n.NewFUSEDisk("elsewhere", harness.FUSEConfig{Source: "diskfs:one of them"})
	ofAnotherDriver(t, foreign, s.ID)
	third, thirdDisk := n.NewFUSEDisk("by chance", harness.FUSEConfig{Source: "diskfs:one of them"})
	other := n.StartContainer(harness.ContainerSpec{Pod: harness.UnrelatedPod, Mounts: []harness.ContainerMount{{At: "/data", Source: third.MountPoint()}}})
	u := s.usedBy(harness.ContainerSpec{Mounts: []harness.ContainerMount{
		{At: "/data", Source: s.MountPoint()}, {At: "/second", Source: second.MountPoint()}, {At: "/foreign", Source: foreign.MountPoint()},
	}})
	second.known()
	s.known()
	s.die()
	second.die()
	foreignDisk.Kill()
	foreignDisk.Restage()
	thirdDisk.Kill()
	harness.Must(t, unix.Unmount(third.MountPoint(), unix.MNT_DETACH))
	harness.Must(t, unix.Unmount(third.Staging, unix.MNT_DETACH))
	before := slices.Concat(u.c.MountsAt("/second"), u.c.MountsAt("/foreign"), other.Mounts())
	n.Expect("healed", s.Request(), "replace-in-container")
	n.Expect("healthy", s.Request())
	after := slices.Concat(u.c.MountsAt("/second"), u.c.MountsAt("/foreign"), other.Mounts())
	if !slices.EqualFunc(before, after, sameID) {
		t.Errorf("the others were %v, and are %v", before, after)
	}
	if got := u.c.AwaitTurns(); got.Reads != got.Turns {
		t.Errorf("the loop in the container comes by this: %+v", got)
	}
	n.Expect("healed", second.Request(), "replace-in-container")
	if got := u.c.MountsAt("/second"); len(got) != 1 || got[0].Dev != second.disk.Dev() {
		t.Errorf("the second volume is %v", got)
	}
}

// ofAnotherDriver makes kubelet's files say that a volume is one of another
// driver, with this handle.
func ofAnotherDriver(t *testing.T, v *harness.Volume, handle string) {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"driverName": "other.csi.example.com", "volumeHandle": handle})
	harness.Must(t, err)
	for _, dir := range []string{filepath.Dir(v.MountPoint()), filepath.Dir(v.Staging)} {
		harness.Must(t, os.WriteFile(filepath.Join(dir, "vol_data.json"), raw, 0o600))
	}
}

// TestInContainerOfAnotherPod leaves a container alone whose pod is not one of the
// volume's, although it has the volume's dead filesystem mounted, as an agent
// that sees the whole node. Where no orchestrator is, it is healed like any other.
func TestInContainerOfAnotherPod(t *testing.T) {
	for _, standalone := range []bool{false, true} {
		t.Run(fmt.Sprintf("standalone %v", standalone), func(t *testing.T) {
			n := harness.NewNode(t, fmt.Sprintf("--standalone=%v", standalone)).Start()
			u := newUsed(n)
			other := u.usedBy(harness.ContainerSpec{Pod: harness.UnrelatedPod, Mounts: []harness.ContainerMount{{At: "/data", Source: u.MountPoint()}}})
			before := other.c.Mounts()
			u.die()
			n.Expect("healed", u.Request(), "replace-in-container")
			u.works()
			if standalone {
				other.works()
			} else if after := other.c.Mounts(); !slices.EqualFunc(before, after, sameID) {
				t.Errorf("the unrelated container had %v, and has %v", before, after)
			}
			n.Expect("healthy", u.Request())
		})
	}
}
