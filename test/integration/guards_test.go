package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// mountOver mounts an unrelated filesystem on the mount point.
func mountOver(v *harness.Volume) {
	v.Node.T.Helper()
	harness.Must(v.Node.T, unix.Mount("unrelated", v.MountPoint(), "tmpfs", 0, "size=1m"))
}

// TestPlaceChecks changes the mount point during the first half of a rebind. The
// step ends, and both the new mount and the staged mount stay as they are; a mount
// over the driver's bind propagates onto the staged one.
func TestPlaceChecks(t *testing.T) {
	for name, c := range map[string]struct {
		instant string
		// never is the instant that the step must not reach.
		never     string
		meanwhile func(v *harness.Volume)
		healthy   bool
	}{
		"something is mounted":                 {instant: "rebind/cloned", never: "rebind/checked", meanwhile: mountOver},
		"the directory is a file now":          {instant: "rebind/cloned", never: "rebind/checked", meanwhile: fileInPlace},
		"a file lies in the directory now":     {instant: "rebind/cloned", never: "rebind/checked", meanwhile: fileInDirectory},
		"the driver's bind before the move":    {instant: "rebind/checked", never: "rebind/verified", meanwhile: (*harness.Volume).PublishAgain, healthy: true},
		"something is mounted before the move": {instant: "rebind/checked", never: "rebind/verified", meanwhile: mountOver},
		"something is mounted on ours":         {instant: "rebind/moved", never: "rebind/verified", meanwhile: mountOver},
	} {
		t.Run(name, func(t *testing.T) {
			h := stopRebind(t, "ext4", c.instant+","+c.never)
			c.meanwhile(h.v)
			changed := h.n.Table()
			h.Resume()
			first := h.Unstopped()
			h.n.SameTable(changed)
			next := h.n.Begin(h.v.Request()).LetGo()
			for _, a := range []*healerpb.NodeHealerResponse{first, next} {
				if a == nil || a.GetAbnormal() == c.healthy {
					t.Errorf("got %v", a)
				}
			}
			h.n.SameTable(changed)
			h.intact(h.v.Staging)
		})
	}
}

func fileInDirectory(v *harness.Volume) {
	v.Node.T.Helper()
	harness.Must(v.Node.T, os.WriteFile(filepath.Join(v.MountPoint(), "file"), nil, 0o600))
}

func fileInPlace(v *harness.Volume) {
	v.Node.T.Helper()
	harness.Must(v.Node.T, os.Remove(v.MountPoint()))
	harness.Must(v.Node.T, os.WriteFile(v.MountPoint(), nil, 0o600))
}

// TestFinalizeChecks has the driver replace the placeholder by its own, with
// other attributes, during the second half: they stay as they are.
func TestFinalizeChecks(t *testing.T) {
	// To each instant the one that the step must not reach after it.
	for instant, never := range map[string]string{
		"finalize": "finalize/checked", "finalize/checked": "finalize/alone", "finalize/alone": "finalize/set", "finalize/set": "unmark/alone",
		"finalize/copies": "unmark/alone", "unmark/checked": "unmark/alone", "unmark/alone": "unmark/set", "unmark/set": "",
	} {
		t.Run(instant, func(t *testing.T) {
			h := stopRebind(t, "ext4", instant+","+never)
			p := h.v.MountPoint()
			harness.Must(t, unix.Unmount(p, unix.MNT_DETACH))
			h.v.PublishAgain()
			harness.Must(t, unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""))
			changed := h.n.Table()
			h.Resume()
			if a := h.Unstopped(); a == nil {
				t.Error("no answer")
			}
			h.n.SameTable(changed)
			h.again()
			h.n.SameTable(changed)
		})
	}
}

// TestNoLongerWanted ends the container between the two halves: the mount point is as
// before the step.
func TestNoLongerWanted(t *testing.T) {
	n := harness.NewNode(t)
	n.Pause = "rebind/verified"
	n.Start()
	v := n.NewVolume("ext4", "no longer wanted")
	c := n.NewContainer(harness.PodUID, v.MountPoint())
	n.Expect("healthy", v.Request())
	v.Unpublish()
	unmounted := n.Table()
	call := n.BeginAndStop(v.Request())
	c.Kill()
	call.Resume()
	if a := call.Answer(); a == nil || !a.GetAbnormal() {
		t.Errorf("got %v", a)
	}
	n.SameTable(unmounted)
}
