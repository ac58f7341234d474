package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceOfADisk has a disk vanish from under a volume and come back under
// another name, as after a new login to its target. The driver stages it again.
func TestReplaceOfADisk(t *testing.T) {
	for fs, options := range map[string]string{
		"ext4": "",
		"xfs":  "nouuid", // the dead one has the same
	} {
		t.Run(fs, func(t *testing.T) {
			needsBeneath(t)
			n := harness.NewNode(t, "--standalone").Start()
			next := newNeighbour(n)
			v := n.NewVolume(fs, "comes back")
			n.Expect("healthy", v.Request())
			before, sum, was := n.Table(), v.Sum(v.MountPoint()), v.Device
			wasDev := harness.Layers(t, v.Staging)[0].Dev.String()
			shutdown(t, v.Staging)
			restageDisk(v, options)
			n.Expect("healed", v.Request(), "replace")
			after := make([]string, len(before))
			for i, line := range before {
				line = strings.ReplaceAll(line, " "+wasDev+" ", " "+harness.Layers(t, v.Staging)[0].Dev.String()+" ")
				after[i] = strings.ReplaceAll(line, " "+was+" ", " "+v.Device+" ")
			}
			if options == "" {
				n.SameTable(after)
			}
			if v.Sum(v.MountPoint()) != sum {
				t.Error("the data differs")
			}
			v.Writable(v.MountPoint())
			n.Expect("healthy", v.Request())
			next.untouched()
		})
	}
}

// needsBeneath skips on a kernel that can only mount over what is dead.
func needsBeneath(t testing.TB) {
	t.Helper()
	harness.NeedsKernel(t, ops.CanMoveBeneath(), "a mount beneath another one (Linux 6.5)")
}

// restageDisk does what a driver does that finds the disk of a volume gone: it
// unmounts what is staged, lazily, and stages the disk that replaces it.
func restageDisk(v *harness.Volume, options string) {
	t := v.Node.T
	t.Helper()
	harness.Must(t, unix.Unmount(v.Staging, unix.MNT_DETACH))
	v.Attach()
	harness.Must(t, unix.Mount(v.Device, v.Staging, v.FS, unix.MS_NOSUID, options))
}
