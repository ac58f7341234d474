package host

// BlockDevice is what sysfs says of the device behind a superblock or a raw
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
	// DiskSeq counts up with every disk that appears or changes its medium, so
	// it tells a reused device number within one boot (Linux 5.15); 0 when the
	// kernel has none.
	DiskSeq  uint64
	Identity Identity
	// Loop is nil unless the device, or its disk, is a loop device with a file.
	Loop *Loop
	// Mapping is nil unless the device is one of device-mapper.
	Mapping *Mapping
	// Paths are the ways to one and the same storage, by name: one for a plain
	// SCSI or NVMe disk. Nil where sysfs tells none, and for a mapping over
	// several devices that do not stand in for each other.
	Paths []DevicePath
}

// Known is false when sysfs told nothing of the device: it is missing, or could
// not be asked, as when this process may open no more files.
func (d BlockDevice) Known() bool { return d.Name != "" && !d.Missing }

// Identify puts in what DeviceIdentity gave for the same device number and
// DiskSeq. The size stays as it is now, and so does the filesystem's UUID, which
// sysfs does not tell.
func (d *BlockDevice) Identify(id Identity) {
	id.Size, id.FilesystemUUID = d.Identity.Size, d.Identity.FilesystemUUID
	d.Identity = id
}

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

// Empty is true when nothing identifies the device.
func (i Identity) Empty() bool {
	return i.FilesystemUUID == "" && i.Serial == "" && i.WWID == "" && i.DMUUID == ""
}
