package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestDirectoryWithoutAName: two pods have directories of one FUSE volume. The kernel shows one as deleted where a
// lookup of its name failed, as any user may make, and it works; one that was deleted takes nothing any more. The
// answer is the same at whichever mount point is asked.
func TestDirectoryWithoutAName(t *testing.T) {
	t.Parallel()
	n := harness.NewNode(t, "--standalone").Start()
	v, d := n.NewFUSEDisk("no-name", harness.FUSEConfig{})
	v.Unpublish()
	v.Publish(harness.OtherPod)
	harness.Must(t, unix.Unmount(v.MountPointOf(harness.OtherPod), 0))
	a, b := v.MountPoint(), v.MountPointOf(harness.OtherPod)
	for at, name := range map[string]string{a: "one", b: "two"} {
		harness.Must(t, os.Mkdir(filepath.Join(v.Staging, name), 0o777))
		harness.Must(t, unix.Mount(filepath.Join(v.Staging, name), at, "", unix.MS_BIND, ""))
	}
	t.Cleanup(func() { _ = unix.Unmount(a, unix.MNT_DETACH); _ = unix.Unmount(b, unix.MNT_DETACH) })
	expect := func(verdict string, has ...string) {
		t.Helper()
		for _, at := range []string{a, b, a} {
			r := v.Request()
			r.VolumePath = at
			n.Expect(verdict, r, has...)
		}
	}
	expect("healthy")
	harness.Must(t, os.Rename(d.Backing+"/one", d.Backing+"/away"))
	harness.Eventually(t, "a lookup fails", func() bool { _, err := os.Stat(v.Staging + "/one"); return err != nil })
	harness.Must(t, os.Rename(d.Backing+"/away", d.Backing+"/one"))
	expect("healthy")
	harness.Must(t, os.WriteFile(a+"/f", nil, 0o600))
	harness.Must(t, os.RemoveAll(v.Staging+"/one"))
	expect("abnormal", "target "+a+": IOError")
}
