package mount

import "strings"

// Traits says what a filesystem type implies for a heal.
type Traits uint16

// The traits.
const (
	// FUSE is served by a daemon; once it answers ENOTCONN it never works again.
	FUSE Traits = 1 << iota
	// NFS has mounts that share a superblock although each shows a directory of its own
	// on the server: one of them may be stale alone. The mount table shows "/" as the
	// root of all of them, and tells them apart by source only.
	NFS
	SMB
	Ceph
	// MayHang is served by a daemon or a server: a path walk through it may wait for an
	// answer.
	MayHang
	// Ext is one of the ext2 family, with its counters in sysfs.
	Ext
	// Disk is a filesystem on a block device that can be frozen and keeps its root
	// directory in memory: statx with AT_STATX_DONT_SYNC asks no storage.
	Disk
	// Memory has no storage, and no source that tells one from another.
	Memory
	// DeviceNodes is a memory filesystem that device nodes usually are on.
	DeviceNodes
	// NoDisk has no disk that another node could own: it is in memory, or behind a
	// server or daemon that decides itself who writes.
	NoDisk
	// ReadOnly can never be written to.
	ReadOnly
	// FromMemory has no d_weak_revalidate and keeps to AT_STATX_DONT_SYNC: following a
	// magic link to one of its files, and asking which file that is, never waits for a
	// server or a daemon.
	FromMemory
)

// fsTypes is the one table of filesystem types. A type that is not in it has no trait.
var fsTypes = map[string]Traits{
	"ext2":  Ext | Disk | FromMemory,
	"ext3":  Ext | Disk | FromMemory,
	"ext4":  Ext | Disk | FromMemory,
	"xfs":   Disk | FromMemory,
	"btrfs": Disk | FromMemory,
	"exfat": FromMemory,
	"f2fs":  FromMemory,
	"msdos": FromMemory,
	"udf":   FromMemory,
	"vfat":  FromMemory,

	"tmpfs":    Memory | DeviceNodes | NoDisk | FromMemory,
	"ramfs":    Memory | NoDisk | FromMemory,
	"devtmpfs": DeviceNodes | FromMemory,

	"squashfs": ReadOnly | FromMemory,
	"erofs":    ReadOnly | FromMemory,
	"iso9660":  ReadOnly | FromMemory,
	"cramfs":   ReadOnly,
	"romfs":    ReadOnly,

	"fuse":     FUSE | MayHang | NoDisk | FromMemory, // whatever its daemon does
	"fuseblk":  FUSE | MayHang | FromMemory,
	"nfs":      NFS | MayHang | NoDisk,
	"nfs4":     NFS | MayHang | NoDisk,
	"cifs":     SMB | MayHang | NoDisk,
	"smb3":     SMB | MayHang | NoDisk,
	"ceph":     Ceph | MayHang | NoDisk | FromMemory,
	"9p":       MayHang | NoDisk,
	"afs":      MayHang,
	"autofs":   MayHang | FromMemory,
	"virtiofs": NoDisk | FromMemory,
	"lustre":   NoDisk,
	"gpfs":     NoDisk,
	"beegfs":   NoDisk,

	"bdev":        FromMemory,
	"binfmt_misc": FromMemory,
	"bpf":         FromMemory,
	"cgroup":      FromMemory,
	"cgroup2":     FromMemory,
	"configfs":    FromMemory,
	"cpuset":      FromMemory,
	"debugfs":     FromMemory,
	"devpts":      FromMemory,
	"efivarfs":    FromMemory,
	"fusectl":     FromMemory,
	"hugetlbfs":   FromMemory,
	"mqueue":      FromMemory,
	"nsfs":        FromMemory,
	"overlay":     FromMemory,
	"pidfs":       FromMemory,
	"pipefs":      FromMemory,
	"proc":        FromMemory,
	"pstore":      FromMemory,
	"resctrl":     FromMemory,
	"rpc_pipefs":  FromMemory,
	"securityfs":  FromMemory,
	"selinuxfs":   FromMemory,
	"sockfs":      FromMemory,
	"sysfs":       FromMemory,
	"tracefs":     FromMemory,
}

// IsType reports whether a filesystem type, with or without a subtype as in
// "fuse.sshfs", has any of the traits.
func IsType(fsType string, traits Traits) bool {
	kind, subtype, has := strings.Cut(fsType, ".")
	return fsTypes[kind]&traits != 0 && has == (subtype != "")
}
