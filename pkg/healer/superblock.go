package healer

import "github.com/csi-addons/node-healer/pkg/facts"

// Superblock is one mounted filesystem instance with what is known of it.
type Superblock struct {
	Dev    facts.Dev
	FSType string
	Source string
	// ReadOnly is the superblock's own flag, whatever the mounts say.
	ReadOnly bool
	// Shutdown and EmergencyReadOnly are ext4's super options of a filesystem that
	// shut itself down, or that turned read-only after an error.
	Shutdown          bool
	EmergencyReadOnly bool
	// Device is nil for a filesystem without a block device.
	Device *facts.BlockDevice
	// Kind is the type of the root: a block device for a raw block volume.
	Kind   facts.PathKind
	Answer facts.Answer
	Space  facts.Space
	Opened facts.OpenedDevice
	// Errors is nil for filesystems other than ext4.
	Errors *facts.FilesystemErrors
	// Upper has the facts of the filesystem that an overlay writes to; nil for
	// others, and where it cannot be found.
	Upper *Superblock
	// Write is the result of a write, where one was tried.
	Write facts.Write
	// Lookup is what a FUSE daemon last answered for a name that cannot exist.
	Lookup facts.Lookup
}

// StateOf returns what a mount itself tells of its superblock.
func StateOf(m facts.Mount) Superblock {
	return Superblock{
		Dev:               m.Dev,
		FSType:            m.FSType,
		Source:            m.Source,
		ReadOnly:          m.SuperReadOnly,
		Shutdown:          m.HasSuperOption("shutdown"),
		EmergencyReadOnly: m.HasSuperOption("emergency_ro"),
	}
}

// Works reports whether the superblock answered, and did not shut down.
func (sb Superblock) Works() bool {
	return sb.Answer.Asked && !sb.Answer.TimedOut && sb.Answer.Errno == 0 && !sb.Shutdown
}

// ProtectedBlock reports whether it is a raw block volume whose device is write-protected. For one that is for
// readers only a driver does just that: the mount of its device node is writable all the same.
func (sb Superblock) ProtectedBlock() bool {
	return sb.Kind == facts.KindBlock && sb.Device != nil && sb.Device.ReadOnly
}
