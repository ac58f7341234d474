package harness

import (
	"os"
	"path/filepath"
	"strings"
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

// Attach makes the volume's image a loop device.
func (v *Volume) Attach() {
	v.Node.T.Helper()
	images = append(images, v.Image)
	v.Device = strings.TrimSpace(Run(v.Node.T, "losetup", "--find", "--show", "--nooverlap", v.Image))
}

// Detach takes the volume's loop device away.
func (v *Volume) Detach() {
	v.Node.T.Helper()
	if v.Device != "" {
		Run(v.Node.T, "losetup", "--detach", v.Device)
		v.Device = ""
	}
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
