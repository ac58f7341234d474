package harness

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// imageSize is small enough for hundreds, and large enough for every mkfs.
func imageSize(fs string) int64 {
	switch fs {
	case "xfs":
		return 300 << 20
	case "btrfs":
		return 128 << 20
	default:
		return 16 << 20
	}
}

// newImage makes the file that is the volume's disk.
func (v *Volume) newImage() {
	v.Node.T.Helper()
	v.Image = filepath.Join(v.Node.Dir, hash(v.ID)+".img")
	Must(v.Node.T, os.WriteFile(v.Image, nil, 0o600))
	Must(v.Node.T, os.Truncate(v.Image, imageSize(v.FS)))
}

// Attach makes the volume's image a loop device, and lets go of the one that the volume had,
// whose number it cannot get. The kernel detaches a loop device when nothing has it mounted
// and this process has let go of it, also by a kill: none is left behind.
func (v *Volume) Attach() {
	v.Node.T.Helper()
	t := v.Node.T
	images = append(images, v.Image)
	v.Device = strings.TrimSpace(Run(t, "losetup", "--find", "--show", v.Image))
	device, err := os.Open(v.Device)
	Must(t, err)
	status, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	Must(t, err)
	status.Flags |= unix.LO_FLAGS_AUTOCLEAR
	Must(t, unix.IoctlLoopSetStatus64(int(device.Fd()), status))
	_ = v.attached.Close() // of none: an error that says so
	v.attached = device
}

// Detach takes the volume's loop device away: from its mounts when they end.
func (v *Volume) Detach() {
	_ = v.attached.Close()
	v.Device = ""
}

// Of linux/fs.h.
const fiFreeze, fiThaw = 0xc0045877, 0xc0045878

// Freeze freezes the volume's filesystem until it is thawed, or the test ends, also by a kill
// (see asInit): no process could get rid of it.
func (v *Volume) Freeze() (thaw func()) {
	v.Node.T.Helper()
	t := v.Node.T
	dir, err := os.Open(v.Staging)
	Must(t, err)
	Must(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	thaw = sync.OnceFunc(func() {
		Must(t, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0))
		Must(t, dir.Close())
	})
	t.Cleanup(thaw)
	return thaw
}

func (v *Volume) mkfs() {
	v.Node.T.Helper()
	switch v.FS {
	case "ext4":
		Run(v.Node.T, "mkfs.ext4", "-q", "-m0", v.Device)
	case "xfs", "btrfs":
		Run(v.Node.T, "mkfs."+v.FS, "-q", v.Device)
	}
}
