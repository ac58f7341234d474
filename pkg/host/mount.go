package host

import "github.com/csi-addons/node-healer/pkg/mount"

// What a mount table says, under the names that the packages above use.
type (
	// Mount is one entry of a mount table.
	Mount = mount.Mount
	// Table is the mount table of a namespace.
	Table = mount.Table
	// Dev is a device number.
	Dev = mount.Dev
	// Attr holds per-mount attributes.
	Attr = mount.Attr
	// Propagation says how a mount shares mount events.
	Propagation = mount.Propagation
)

// The attributes that a step reads and sets.
const (
	AttrReadOnly    = mount.AttrReadOnly
	AttrNoSUID      = mount.AttrNoSUID
	AttrNoDev       = mount.AttrNoDev
	AttrNoExec      = mount.AttrNoExec
	AttrNoAtime     = mount.AttrNoAtime
	AttrStrictAtime = mount.AttrStrictAtime
	AttrNoDirAtime  = mount.AttrNoDirAtime
	AttrIDMap       = mount.AttrIDMap
	AttrNoSymFollow = mount.AttrNoSymFollow
)

// NewTable takes mounts in any order.
func NewTable(mounts []Mount) Table { return mount.NewTable(mounts) }

// ParseDev reads "major:minor".
func ParseDev(s string) (Dev, error) { return mount.ParseDev(s) }

// IsNFS reports whether mounts of a filesystem type share a superblock although each
// shows a directory of its own on the server.
func IsNFS(fsType string) bool { return mount.IsType(fsType, mount.NFS) }
