package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sysfs is where sysfs is mounted, "/sys" but in tests.
type Sysfs string

// sectorSize is the unit of a device's size in sysfs, whatever its block size.
const sectorSize = 512

// BlockDevice reads what sysfs knows of a block device. It asks the kernel's
// memory, never the device.
func (s Sysfs) BlockDevice(dev Dev) BlockDevice {
	dir := filepath.Join(string(s), "dev/block", dev.String())
	self, err := filepath.EvalSymlinks(dir)
	if err != nil {
		// Only an absence counts as one: anything else proves nothing.
		return BlockDevice{Dev: dev, Missing: errors.Is(err, fs.ErrNotExist) && s.mounted()}
	}
	d := BlockDevice{Dev: dev, Name: strings.ReplaceAll(filepath.Base(self), "!", "/")}
	d.ReadOnly = read(self, "ro") == "1"
	if sectors, err := strconv.ParseInt(read(self, "size"), 10, 64); err == nil {
		d.Identity.Size = sectors * sectorSize
	}
	disk := self
	if d.Identity.Partition = read(self, "partition"); d.Identity.Partition != "" {
		disk = filepath.Dir(self)
	}
	d.DiskSeq, _ = strconv.ParseUint(read(disk, "diskseq"), 10, 64)
	d.Identity.DMUUID = read(self, "dm/uuid")
	d.Identity.WWID = first(read(disk, "wwid"), read(disk, "device/wwid"))
	// The kernel keeps these since it found the device. A virtio disk's "serial"
	// is left out: reading it asks the device, and one that hangs would answer
	// never.
	d.Identity.Serial = read(disk, "device/serial")
	return d
}

// Name gives the kernel's name of a device below /dev; empty when sysfs does not
// know it.
func (s Sysfs) Name(dev Dev) string {
	target, err := os.Readlink(filepath.Join(string(s), "dev/block", dev.String()))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(filepath.Base(target), "!", "/")
}

// mounted is true when the tree really is a sysfs with block devices.
func (s Sysfs) mounted() bool {
	_, err := os.Stat(filepath.Join(string(s), "dev/block"))
	return err == nil
}

// read gives a sysfs file's text without the newline, empty when there is none.
func read(dir, name string) string {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
