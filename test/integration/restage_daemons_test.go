package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageRclone has rclone as the driver's daemon.
func TestRestageRclone(t *testing.T) {
	harness.NeedsPrograms(t, "rclone")
	n, d := restaging(t, "unmount-first", csidriver.Mode{
		Stage: csidriver.DoesNothing,
		Daemon: []string{
			"rclone", "mount", "--config=/dev/null", "--allow-other",
			"--vfs-cache-mode=writes", "--vfs-write-back=0s", "--cache-dir=$DATA.cache",
			"--dir-perms=0755", "--file-perms=0640", "$DATA", "$AT",
		},
	})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	awaitWritten(t, v, d.Data(v.ID))
	for range 2 {
		d.KillDaemon(v)
		n.Expect("healed", d.Request(v), "restage of the staging mount point; ")
		d.SameTable(v, before)
		if v.Sum(v.MountPoint()) != sum {
			t.Error("the data is another one")
		}
	}
}

// awaitWritten waits until what lies behind a daemon has all that is in the volume: rclone
// writes later.
func awaitWritten(t *testing.T, v *harness.Volume, behind string) {
	t.Helper()
	harness.Eventually(t, "the daemon has written all", func() bool {
		return !slices.ContainsFunc([]string{"a", "sub/b", "sub/deep/c"}, func(name string) bool {
			seen, err := os.ReadFile(filepath.Join(v.MountPoint(), name))
			written, notYet := os.ReadFile(filepath.Join(behind, name))
			return err != nil || notYet != nil || !bytes.Equal(seen, written)
		})
	})
}
