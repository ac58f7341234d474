package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestBusyDuplicate leaves a placeholder alone while a process has a file open on it,
// and unmounts it afterwards.
func TestBusyDuplicate(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "busy")
	n.Expect("healthy", v.Request())
	before := n.Table()
	placeholderOn(t, v.Staging, v.MountPoint())
	held, err := os.Open(filepath.Join(v.MountPoint(), "a"))
	harness.Must(t, err)
	defer held.Close()
	stacked := n.Table()
	for range 2 {
		n.Expect("abnormal", v.Request(), "StackedMounts", "unmount-duplicate", "busy")
		n.SameTable(stacked)
	}
	harness.Must(t, held.Close())
	n.Expect("healed", v.Request(), "unmount-duplicate")
	n.SameTable(before)
}

// TestCloneIsPrivate mounts something inside the staged mount, or inside the
// clone, while the clone is already at the mount point: it appears only where it was
// mounted.
func TestCloneIsPrivate(t *testing.T) {
	for name, beside := range map[string]func(v *harness.Volume) string{
		"staging":     func(v *harness.Volume) string { return v.Staging },
		"mount point": func(v *harness.Volume) string { return v.MountPoint() },
	} {
		t.Run(name, func(t *testing.T) {
			h := stopRebind(t, "ext4", "rebind/moved")
			target := filepath.Join(beside(h.v), "sub")
			harness.Must(t, unix.Mount("unrelated", target, "tmpfs", 0, "size=1m"))
			h.Resume()
			if a := h.Answer(); a == nil || a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
			for _, line := range h.n.Table() {
				if strings.Contains(line, "unrelated") && !strings.HasPrefix(line, target+" ") {
					t.Errorf("what was mounted on %s is also %q", target, line)
				}
			}
		})
	}
}

// TestUnpublishDuringACheck unmounts a mount point whose filesystem is just being
// asked and does not answer: the check does not make it busy.
func TestUnpublishDuringACheck(t *testing.T) {
	n := harness.NewNode(t, "--standalone", "--probe-timeout=30s").Start()
	v, fs := n.NewFUSEVolume("hung", faultfs.Config{})
	n.Expect("healthy", v.Request())
	fs.Hang()
	call := n.Begin(v.Request())
	fs.AwaitWaiting(1)
	if err := unix.Unmount(v.MountPoint(), 0); err != nil {
		t.Errorf("a check in flight makes the mount point busy: %v", err)
	}
	fs.Abort()
	call.Answer()
}

// TestUnpublishDuringEveryProbe unmounts a mount point while a check has its root directory,
// or its device, open.
func TestUnpublishDuringEveryProbe(t *testing.T) {
	for fs, touches := range map[string][]string{
		"ext4": {"probe/opened", "probe/read"}, "xfs": {"probe/opened", "probe/read"},
		"btrfs": {"probe/opened"}, "block": {"probe/read"},
	} {
		for _, instant := range touches {
			t.Run(fs+" at "+instant, func(t *testing.T) {
				n := harness.NewNode(t, "--mode=check", "--probe-timeout=30s")
				n.Pause = instant
				n.Start()
				v := n.NewVolume(fs, "touched")
				call := n.BeginAndStop(v.Request())
				if err := unix.Unmount(v.MountPoint(), 0); err != nil {
					t.Errorf("a check makes the mount point busy: %v", err)
				}
				call.Resume()
				call.LetGo()
			})
		}
	}
}
