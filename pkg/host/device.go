package host

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
