package node

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Sysfs is where sysfs is mounted, "/sys" but in tests.
//
// The kernel answers everything that is read here from memory: no device is asked, and
// no lock is taken that a hanging device might hold. Before another attribute is
// added, read its show function in the kernel's source.
type Sysfs string

// sectorSize is the unit of a device's size in sysfs, whatever its block size.
const sectorSize = 512

// DeviceIdentity reads a device's identity without its size. It is valid as long as
// the device number and DiskSeq do not change, unless DiskSeq is 0. One exception: a
// SCSI target that moves a LUN to another volume changes the WWID of the same disk
// when it is scanned anew. A caller that is about to act reads it again.
func (s Sysfs) DeviceIdentity(dev facts.Dev) facts.Identity {
	where, err := s.find(dev)
	if err != nil {
		return facts.Identity{}
	}
	return where.identity()
}

// Name returns the kernel's name of a device below /dev; empty when sysfs does not
// have it.
func (s Sysfs) Name(dev facts.Dev) string {
	dir, err := follow(s.link(dev))
	if err != nil {
		return ""
	}
	return nameOf(dir)
}

func (s Sysfs) link(dev facts.Dev) string { return string(s) + "/dev/block/" + dev.String() }

// deviceDir is where sysfs keeps a block device.
type deviceDir struct {
	self string
	// disk is the directory of the whole disk: self, but for a partition.
	disk      string
	partition string
}

func (s Sysfs) find(dev facts.Dev) (deviceDir, error) {
	self, err := follow(s.link(dev))
	if err != nil {
		return deviceDir{}, err
	}
	return deviceAt(self), nil
}

// deviceAt finds the disk of a partition.
func deviceAt(dir string) deviceDir {
	d := deviceDir{self: dir, disk: dir, partition: text(dir + "/partition")}
	if d.partition != "" {
		d.disk = filepath.Dir(dir)
	}
	return d
}

// BlockDevice reads what sysfs has of a block device.
func (s Sysfs) BlockDevice(dev facts.Dev) facts.BlockDevice {
	sectors := ""
	where, err := s.find(dev)
	if err == nil {
		sectors, err = readFile(where.self + "/size")
	}
	if err != nil {
		// Only ENOENT and ENODEV prove that it is missing.
		gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
		return facts.BlockDevice{Dev: dev, Missing: gone && exists(string(s)+"/dev/block")}
	}
	d := facts.BlockDevice{
		Dev:             dev,
		Name:            nameOf(where.self),
		ReadOnly:        text(where.self+"/ro") == "1",
		BackingFileGone: backingFileGone(where.disk),
		Identity:        where.identity(),
	}
	if n, err := strconv.ParseInt(sectors, 10, 64); err == nil {
		d.Identity.Size = n * sectorSize
	}
	d.DiskSeq, _ = strconv.ParseUint(text(where.disk+"/diskseq"), 10, 64)
	if isMapping(where.self) {
		m, paths := mappingOf(where.self, maxStacked)
		d.Mapping, d.DeadPaths = &m, deadPaths(paths)
	} else {
		d.DeadPaths = deadPaths(pathsOf(where.disk))
	}
	return d
}

func (d deviceDir) identity() facts.Identity {
	id := facts.Identity{Partition: d.partition}
	if isMapping(d.self) {
		id.DMUUID = text(d.self + "/dm/uuid")
	}
	// The kernel keeps these since it found the device. A virtio disk's "serial"
	// is left out: reading it asks the device, which may hang.
	id.WWID = strings.TrimSpace(text(d.disk + "/wwid"))
	if id.WWID == "" {
		id.WWID = strings.TrimSpace(text(d.disk + "/device/wwid"))
	}
	id.Serial = strings.TrimSpace(text(d.disk + "/device/serial"))
	return id
}

// nameOf returns the kernel's name of the device with that directory, as below /dev:
// sysfs has "cciss!c0d0".
func nameOf(dir string) string { return strings.ReplaceAll(filepath.Base(dir), "!", "/") }
