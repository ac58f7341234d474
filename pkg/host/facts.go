package host

import (
	"slices"
	"sync"
)

// BlockDevice gives what sysfs knows of a device. Its state is read now; its
// identity, but for the size, is read again when another disk has its place.
func (n *Node) BlockDevice(dev Dev) BlockDevice {
	d := n.cfg.Sysfs.DeviceState(dev)
	if d.Name != "" {
		d.Identify(n.identities.of(dev, d.DiskSeq, n.cfg.Sysfs))
	}
	return d
}

// Identity reads a device's identity, but for the size, anew: for whoever is
// about to act.
func (n *Node) Identity(dev Dev) Identity { return n.cfg.Sysfs.DeviceIdentity(dev) }

// FilesystemErrors reads what a filesystem on the device with the kernel's name
// for it has counted; nil where it counts nothing.
func (n *Node) FilesystemErrors(fsType, device string) *FilesystemErrors {
	// One driver serves all three (CONFIG_EXT4_USE_FOR_EXT2).
	if device == "" || !slices.Contains([]string{"ext2", "ext3", "ext4"}, fsType) {
		return nil
	}
	return n.cfg.Sysfs.Ext4Errors(device)
}

// BtrfsErrors reads what a btrfs has counted; nil for another filesystem.
func (n *Node) BtrfsErrors(fsType, uuid string) *BtrfsErrors {
	if fsType != "btrfs" || uuid == "" {
		return nil
	}
	return n.cfg.Sysfs.BtrfsErrors(uuid)
}

// identities keeps what devices are, for as long as the disk is the same.
type identities struct {
	mu    sync.Mutex
	known map[Dev]identity
}

type identity struct {
	diskSeq uint64
	is      Identity
}

// of reads the identity where it is not known. Device numbers are few, so
// nothing is ever thrown away.
func (i *identities) of(dev Dev, diskSeq uint64, sysfs Sysfs) Identity {
	if diskSeq == 0 {
		return sysfs.DeviceIdentity(dev) // the kernel does not tell disks apart
	}
	i.mu.Lock()
	known := i.known[dev]
	i.mu.Unlock()
	if known.diskSeq == diskSeq {
		return known.is
	}
	known = identity{diskSeq, sysfs.DeviceIdentity(dev)}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known == nil {
		i.known = map[Dev]identity{}
	}
	i.known[dev] = known
	return known.is
}
