package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestFilesystemErrors has an ext4 count an error and go on: everything works, and the
// error is reported with its time and mount point until a person has checked the
// filesystem. (Where a write is tried, TestWhoWrites shows.)
func TestFilesystemErrors(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "errors")
	harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "errors=continue"))
	n.Expect("healthy", v.Request())
	before := n.Table()
	countError(t, v)
	says := []string{"FilesystemErrors", "counted 1 errors, 0 when it was last healthy", "the last at 20", errorsOf(t, v, "last_error_func")}
	for range 2 {
		n.Expect("abnormal", v.Request(), says...)
	}
	next.untouched()
	v.Writable(v.MountPoint())
	n.SameTable(before)
}

// TestFilesystemErrorsAreNoEnd rebinds a filesystem that counted errors: it works. The
// errors are still reported, also at the mount point of a later pod.
func TestFilesystemErrorsAreNoEnd(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "errors")
	harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT, "errors=continue"))
	n.Expect("healthy", v.Request())
	before := n.Table()
	countError(t, v)
	v.Unpublish()
	const counted = "FilesystemErrors (ext4 counted 1 errors"
	n.Expect("abnormal", v.Request(), "NotMounted", "Done: rebind of", counted)
	n.SameTable(before)
	v.Publish(harness.OtherPod)
	later := v.Request()
	later.VolumePath = v.MountPointOf(harness.OtherPod)
	n.Expect("abnormal", later, counted)
	harness.Must(t, unix.Unmount(later.GetVolumePath(), 0))
	n.Expect("abnormal", later, "NotMounted", "Done: rebind of", counted)
	n.Expect("abnormal", later, counted, "Nothing was changed")
	v.Writable(later.GetVolumePath())
}

// countError has an ext4 find an error in itself, and waits until it says so:
// the kernel notes it in the background.
func countError(t *testing.T, v *harness.Volume) {
	t.Helper()
	before := errorsOf(t, v, "errors_count")
	harness.Must(t, os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(v.Device), "trigger_fs_error"), []byte("test"), 0o600))
	harness.Eventually(t, "the error is counted", func() bool { return errorsOf(t, v, "errors_count") != before })
}

// errorsOf reads what an ext4 knows of its errors.
func errorsOf(t *testing.T, v *harness.Volume, what string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(v.Device), what))
	harness.Must(t, err)
	text := strings.TrimSpace(string(raw))
	if text == "" {
		t.Fatalf("the kernel tells no %s", what)
	}
	return text
}
