package facts

import (
	"strings"
	"syscall"
	"time"
)

// BlockDevice is what sysfs tells of the device behind a superblock or a raw
// block volume. In the zero value nothing is known.
type BlockDevice struct {
	Dev Dev
	// Name is the kernel's name, as in "sda"; empty when sysfs does not know
	// the device any more.
	Name string
	// Missing is true when sysfs does not know the device.
	Missing bool
	// ReadOnly is the device's own write protection.
	ReadOnly bool
	// DiskSeq is larger for each disk that appears or changes its medium: a device
	// number that is used again within one boot has another one (Linux 5.15). 0 when
	// the kernel has none.
	DiskSeq  uint64
	Identity Identity
	// BackingFileGone is true when the device, or its disk, is a loop device whose file has
	// lost its name.
	BackingFileGone bool
	// Mapping is nil unless the device is one of device-mapper.
	Mapping *Mapping
	// DeadPaths are the paths to the storage with their states, if all have failed: SCSI
	// and NVMe disks, one or several below a multipath mapping. Nil while one has not, where
	// sysfs shows none, and for a mapping over devices that cannot replace each other.
	DeadPaths []string
}

// Known reports whether the device is there and sysfs could be read, which fails when
// this process may open no more files.
func (d BlockDevice) Known() bool { return d.Name != "" && !d.Missing }

// Identity is what stays the same when a device gets another name. A clone or
// a snapshot shares FilesystemUUID and Size with its origin.
type Identity struct {
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	Serial         string `json:"serial,omitempty"`
	WWID           string `json:"wwid,omitempty"`
	DMUUID         string `json:"dmUUID,omitempty"`
	// Partition is the number of a partition; the other parts but the UUID are
	// those of its disk.
	Partition string `json:"partition,omitempty"`
	// Size is in bytes.
	Size int64 `json:"size,omitempty"`
}

// Empty reports whether nothing identifies the device.
func (i Identity) Empty() bool {
	return i.FilesystemUUID == "" && i.Serial == "" && i.WWID == "" && i.DMUUID == ""
}

// OfDisk returns the identity without what names a slot, whatever disk is attached there next.
//
// A multipath mapping has the WWID of its paths: a driver that finds one path mounts that disk, and the mapping the
// next time. The serial number of a SCSI disk, which only newer kernels show, and of no mapping, adds nothing to it.
func (i Identity) OfDisk() Identity {
	if naa, is := strings.CutPrefix(i.DMUUID, "mpath-3"); is {
		i.WWID, i.DMUUID = "naa."+naa, ""
	}
	if strings.HasPrefix(i.WWID, "naa.") {
		i.Serial = ""
	}
	switch {
	case strings.HasPrefix(i.WWID, "nvme.") && (!strings.HasSuffix(i.WWID, "-00000001") || strings.HasPrefix(i.Serial, "nvme_card")):
		// The kernel made that WWID, of the controller's serial number and the number of the namespace, as the device
		// gives none (nvme_wwid_show). Where one controller has all disks, as on GCE (whose controllers are all
		// "nvme_card" and a word), both are another disk's after the next attach.
		i.WWID, i.Serial = "", ""
	case strings.HasPrefix(i.WWID, "naa.5056432d4944"), // "PVC-ID" and the LUN, of proxmox-csi-plugin
		strings.HasPrefix(i.WWID, "naa.60000000000000000e000000"): // "IET", target and LUN, of Longhorn's tgtd: the next attach may get another target
		i.WWID = ""
	}
	return i
}

// OpenedDevice is what an open block device says of itself.
type OpenedDevice struct {
	// Short is by how many bytes the file behind a loop device is too short for
	// it.
	Short uint64
	// Errno is of the read of its first block, where the filesystem on it failed as well; else the
	// probe's answer has it.
	Errno syscall.Errno
}

// Mapping is a device that device-mapper made of others.
type Mapping struct {
	Name string
	UUID string
	// Suspended is true while this mapping, or one that it lies on, holds all
	// I/O. A suspend that still waits for I/O under way does not show.
	Suspended bool
	// SuspendedBelow is the name of a suspended mapping below, when this one is not
	// suspended itself.
	SuspendedBelow string
	// Orphaned is true when a device below is gone, or when by its UUID there must be
	// one and there is none. A multipath mapping is orphaned when all its paths are gone.
	Orphaned bool
}

// FilesystemErrors is what a filesystem itself counted. The count lives on the
// disk, over mounts and boots, until the filesystem is checked.
type FilesystemErrors struct {
	Count uint64
	// LastTime is by the node's clock at the time, in seconds.
	LastTime time.Time
	// LastFunction is the kernel's function that saw the last error.
	LastFunction string
}
