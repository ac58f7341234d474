package node

import (
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// BlockDevice returns what is known of a device. What may change is read now: from
// the open device, where a probe had it open a moment ago, and from sysfs. Its
// identity, but for the size, is read again when another disk has its number.
func (n *Node) BlockDevice(dev facts.Dev, opened facts.OpenedDevice) facts.BlockDevice {
	if d, known := n.devices.get(dev); known && opened.Open && opened.DiskSeq != 0 && opened.DiskSeq == d.DiskSeq {
		d.ReadOnly, d.Identity.Size = opened.ReadOnly, int64(opened.Size)
		d.BackingFileGone = backingFileGone(string(n.cfg.Sysfs) + "/block/" + d.Name) // it may have been removed since
		return d
	}
	d := n.cfg.Sysfs.BlockDevice(dev)
	// Sysfs has to be read each time for mappings and paths, which have states of their own,
	// and for a partition, whose state is its disk's. The name tells, as the paths may be
	// unknown when this process had no descriptor left to read them.
	onPaths := strings.HasPrefix(d.Name, "sd") || strings.HasPrefix(d.Name, "nvme")
	if d.DiskSeq == 0 || d.Mapping != nil || onPaths || d.Identity.Partition != "" {
		n.devices.remove(d.Dev)
	} else {
		n.devices.add(d.Dev, d)
	}
	return d
}

// Identity reads a device's identity, but for the size, anew: for a caller that is
// about to act.
func (n *Node) Identity(dev facts.Dev) facts.Identity { return n.cfg.Sysfs.DeviceIdentity(dev) }

// FilesystemErrors reads what a filesystem on the device with the kernel's name
// for it has counted; nil where it counts nothing.
func (n *Node) FilesystemErrors(fsType, device string) *facts.FilesystemErrors {
	// One driver serves all three (CONFIG_EXT4_USE_FOR_EXT2).
	if device == "" || !facts.IsType(fsType, facts.Ext) {
		return nil
	}
	return n.cfg.Sysfs.Ext4Errors(device)
}
