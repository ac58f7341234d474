package facts

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
)

// fsTypes is the one table of filesystem types. A type that is not in it has no trait.
var fsTypes = map[string]Traits{
	"ext2":  Ext | Disk,
	"ext3":  Ext | Disk,
	"ext4":  Ext | Disk,
	"xfs":   Disk,
	"btrfs": Disk,

	"tmpfs":    Memory | DeviceNodes | NoDisk,
	"ramfs":    Memory | NoDisk,
	"devtmpfs": DeviceNodes,

	"squashfs": ReadOnly,
	"erofs":    ReadOnly,
	"iso9660":  ReadOnly,
	"cramfs":   ReadOnly,
	"romfs":    ReadOnly,

	"fuse":     FUSE | MayHang | NoDisk, // whatever its daemon does
	"fuseblk":  FUSE | MayHang,
	"nfs":      NFS | MayHang | NoDisk,
	"nfs4":     NFS | MayHang | NoDisk,
	"cifs":     SMB | MayHang | NoDisk,
	"smb3":     SMB | MayHang | NoDisk,
	"ceph":     Ceph | MayHang | NoDisk,
	"9p":       MayHang | NoDisk,
	"afs":      MayHang,
	"autofs":   MayHang,
	"virtiofs": MayHang | NoDisk,
	"lustre":   MayHang | NoDisk,
	"gpfs":     MayHang | NoDisk,
	"beegfs":   MayHang | NoDisk,
	"wekafs":   MayHang | NoDisk,
	"panfs":    MayHang | NoDisk,
	"gfs2":     MayHang, // for a lock of the cluster
	"ocfs2":    MayHang,
}

// IsType reports whether a filesystem type, with or without a subtype as in
// "fuse.sshfs", has any of the traits.
func IsType(fsType string, traits Traits) bool {
	kind, subtype, has := strings.Cut(fsType, ".")
	return fsTypes[kind]&traits != 0 && has == (subtype != "")
}

// IsNFS reports whether mounts of a filesystem type share a superblock although each
// shows a directory of its own on the server.
func IsNFS(fsType string) bool { return IsType(fsType, NFS) }

// IsCeph reports whether a filesystem type is CephFS, of the kernel or of a daemon.
func IsCeph(fsType string) bool {
	return IsType(fsType, Ceph) || IsFUSE(fsType) && strings.Contains(fsType, "ceph")
}

// IsFUSE reports whether a daemon serves the filesystem type.
func IsFUSE(fsType string) bool { return IsType(fsType, FUSE) }
