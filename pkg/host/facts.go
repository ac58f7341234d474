package host

import (
	"strings"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// BlockDevice returns what is known of a device. What may change is read now: from
// the open device, where a probe had it open a moment ago, and from sysfs. Its
// identity, but for the size, is read again when another disk has its number.
func (n *Node) BlockDevice(dev Dev, opened OpenedDevice) BlockDevice {
	if d, known := n.devices.as(dev, opened); known {
		d.BackingFileGone = backingFileGone(string(n.cfg.Sysfs) + "/block/" + d.Name) // it may have been removed since
		return d
	}
	d := n.cfg.Sysfs.BlockDevice(dev)
	n.devices.learn(d)
	return d
}

// Identity reads a device's identity, but for the size, anew: for a caller that is
// about to act.
func (n *Node) Identity(dev Dev) Identity { return n.cfg.Sysfs.DeviceIdentity(dev) }

// FilesystemErrors reads what a filesystem on the device with the kernel's name
// for it has counted; nil where it counts nothing.
func (n *Node) FilesystemErrors(fsType, device string) *FilesystemErrors {
	// One driver serves all three (CONFIG_EXT4_USE_FOR_EXT2).
	if device == "" || !mount.IsType(fsType, mount.Ext) {
		return nil
	}
	return n.cfg.Sysfs.Ext4Errors(device)
}

// devices caches what devices are, for as long as the disk is the same: its
// sequence number tells.
type devices struct{ cache[Dev, BlockDevice] }

func newDevices() devices { return devices{newCache[Dev, BlockDevice]()} }

// as returns a device whose whole state an open one tells.
func (k devices) as(dev Dev, opened OpenedDevice) (BlockDevice, bool) {
	if !opened.Open || opened.DiskSeq == 0 {
		return BlockDevice{}, false
	}
	d, known := k.get(dev)
	d.ReadOnly, d.Identity.Size = opened.ReadOnly, int64(opened.Size)
	return d, known && d.DiskSeq == opened.DiskSeq
}

// learn caches a device, unless sysfs has to be read each time: mappings and paths
// have states of their own, and a partition's are its disk's. It goes by the name, as
// the paths may be unknown when this process had no descriptor left to read them.
func (k devices) learn(d BlockDevice) {
	onPaths := strings.HasPrefix(d.Name, "sd") || strings.HasPrefix(d.Name, "nvme")
	if d.DiskSeq == 0 || d.Mapping != nil || onPaths || d.Identity.Partition != "" {
		k.remove(d.Dev)
		return
	}
	k.add(d.Dev, d)
}
