package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestDeviceWeak sees what the kernel knows of a disk that still answers, and
// that it is healthy again when the disk is.
func TestDeviceWeak(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(t *testing.T, v *harness.Volume)
		says   []string
		mends  func(t *testing.T, v *harness.Volume)
	}{
		// A deleted file does not get its name back.
		"the file behind it is deleted": {func(t *testing.T, v *harness.Volume) {
			harness.Must(t, os.Remove(v.Image))
		}, []string{"BackingFileGone", "the file behind"}, nil},
		"it is write-protected": {func(t *testing.T, v *harness.Volume) {
			device := v.Device
			t.Cleanup(func() { harness.Run(t, "blockdev", "--setrw", device) })
			harness.Run(t, "blockdev", "--setro", device)
		}, []string{"DeviceReadOnly", "write-protected"}, func(t *testing.T, v *harness.Volume) {
			harness.Run(t, "blockdev", "--setrw", v.Device)
		}},
		"it shrinks": {func(t *testing.T, v *harness.Volume) {
			resize(t, v, -1<<20)
			harness.Run(t, "losetup", "--set-capacity", v.Device)
		}, []string{"DeviceSizeChanged", "recorded were"}, func(t *testing.T, v *harness.Volume) {
			resize(t, v, 1<<20)
			harness.Run(t, "losetup", "--set-capacity", v.Device)
		}},
		"the file behind it shrinks": {func(t *testing.T, v *harness.Volume) {
			resize(t, v, -1<<20)
		}, []string{"DeviceSizeChanged", "1048576 bytes too short"}, func(t *testing.T, v *harness.Volume) {
			resize(t, v, 1<<20)
		}},
	} {
		for _, fs := range []string{"ext4", "block"} {
			t.Run(fs+" "+name, func(t *testing.T) {
				n := harness.NewNode(t, "--standalone").Start()
				next := newNeighbour(n)
				v := n.NewVolume(fs, "weak")
				n.Expect("healthy", v.Request())
				before := n.Table()
				c.breaks(t, v)
				soon(n, "abnormal", v.Request())
				for range 2 {
					n.Expect("abnormal", v.Request(), c.says...)
				}
				next.untouched()
				if c.mends != nil {
					c.mends(t, v)
					soon(n, "healthy", v.Request())
				}
				n.SameTable(before)
			})
		}
	}
}

// resize makes the file behind a volume's disk longer or shorter.
func resize(t *testing.T, v *harness.Volume, by int64) {
	t.Helper()
	info, err := os.Stat(v.Image)
	harness.Must(t, err)
	harness.Must(t, os.Truncate(v.Image, info.Size()+by))
}

// TestDeviceGrows finds nothing wrong with a disk that was expanded.
func TestDeviceGrows(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v := n.NewVolume("ext4", "expanded")
	n.Expect("healthy", v.Request())
	resize(t, v, 1<<20)
	harness.Run(t, "losetup", "--set-capacity", v.Device)
	n.Expect("healthy", v.Request())
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted")
}

// TestDetachedUnderAMount detaches the loop device of a mounted volume: the kernel
// keeps it until its last user ends. The volume works and is healed as before, and
// with its last mount the disk is free.
func TestDetachedUnderAMount(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	v := n.NewVolume("ext4", "detached")
	n.Expect("healthy", v.Request())
	before, sum, device := n.Table(), v.Sum(v.MountPoint()), v.Device
	v.Detach()
	for range 2 {
		n.Expect("healthy", v.Request())
		v.Unpublish()
		n.Expect("healed", v.Request(), "NotMounted")
		n.SameTable(before)
	}
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data differs")
	}
	next.untouched()
	v.Unpublish()
	harness.Must(t, unix.Unmount(v.Staging, 0))
	harness.Eventually(t, "the loop device is free", func() bool { return backingFile(device) == "" })
	n.Expect("abnormal", v.Request(), "NotMounted", "StagingNotMounted")
	next.untouched()
}

// backingFile is the file behind a loop device, empty when it has none.
func backingFile(device string) string {
	raw, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	return string(bytes.TrimSpace(raw))
}
