package integration

import (
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// restagedBeside is a volume whose driver has staged it again while the daemon of
// before, which the mount point still has, goes on.
func restagedBeside(n *harness.Node) (v *harness.Volume, previous *faultfs.FS) {
	n.T.Helper()
	v, previous = n.NewFUSEVolume("restaged", faultfs.Config{})
	n.Expect("healthy", v.Request())
	// Its connection is ended at last by number, which must still be its own.
	v.Keep()
	harness.Must(n.T, unix.Unmount(v.Staging, unix.MNT_DETACH))
	faultfs.Mount(n.T, v.Staging, faultfs.Config{})
	return v, previous
}

// TestReplaceWhatFails replaces a mount whose server answers with a lasting error.
func TestReplaceWhatFails(t *testing.T) {
	for errno, reason := range map[syscall.Errno]string{
		unix.ESTALE: "StaleFileHandle", unix.EIO: "IOError", unix.ENODEV: "IOError", unix.ENOTCONN: "Disconnected",
	} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			next := newNeighbour(n)
			v, previous := restagedBeside(n)
			previous.Fail(errno)
			n.Expect("healed", v.Request(), reason, "replace")
			staged := harness.Layers(t, v.Staging)
			if got := harness.Layers(t, v.MountPoint()); len(got) != 1 || got[0].Dev != staged[0].Dev || got[0].Attr != staged[0].Attr {
				t.Errorf("at the mount point there is %v", got)
			}
			n.Expect("healthy", v.Request())
			next.untouched()
		})
	}
}

// TestReplaceNothingAlive leaves a mount alone that works, does not answer, or refuses
// us, although another one is staged.
func TestReplaceNothingAlive(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(previous *faultfs.FS)
		says   string
	}{
		"it works":   {func(*faultfs.FS) {}, "WrongVolumeMounted"},
		"hangs":      {func(f *faultfs.FS) { f.Hang() }, "NotResponding"},
		"is stopped": {(*faultfs.FS).Stop, "NotResponding"},
		"refuses us": {func(f *faultfs.FS) { f.Fail(unix.EACCES) }, "PermissionDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			v, previous := restagedBeside(n)
			c.breaks(previous)
			before, ids := n.Table(), idsAt(t, v.Staging, v.MountPoint())
			for range 2 {
				n.Expect("abnormal", v.Request(), c.says)
			}
			n.SameTable(before)
			if got := idsAt(t, v.Staging, v.MountPoint()); !slices.Equal(got, ids) {
				t.Errorf("the mounts %v became %v", ids, got)
			}
		})
	}
}
