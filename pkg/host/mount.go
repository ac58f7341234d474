package host

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Dev is a device number as mountinfo shows it. It is an address, not an
// identity: it does not survive a boot, and btrfs shows an anonymous one.
type Dev struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// String gives the "major:minor" of mountinfo and sysfs.
func (d Dev) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Zero is true when there is no device.
func (d Dev) Zero() bool { return d == Dev{} }

// Attr holds per-mount attributes as MOUNT_ATTR_* bits (mount_setattr(2)).
type Attr uint64

// The attributes that a step reads and sets.
const (
	AttrReadOnly    Attr = unix.MOUNT_ATTR_RDONLY
	AttrNoSUID      Attr = unix.MOUNT_ATTR_NOSUID
	AttrNoDev       Attr = unix.MOUNT_ATTR_NODEV
	AttrNoExec      Attr = unix.MOUNT_ATTR_NOEXEC
	AttrNoAtime     Attr = unix.MOUNT_ATTR_NOATIME
	AttrStrictAtime Attr = unix.MOUNT_ATTR_STRICTATIME
	AttrNoDirAtime  Attr = unix.MOUNT_ATTR_NODIRATIME
	AttrIDMap       Attr = unix.MOUNT_ATTR_IDMAP
	AttrNoSymFollow Attr = unix.MOUNT_ATTR_NOSYMFOLLOW
)

// attrNames lists the attributes with their mountinfo words.
var attrNames = [...]struct {
	attr Attr
	name string
}{
	{AttrReadOnly, "ro"},
	{AttrNoSUID, "nosuid"},
	{AttrNoDev, "nodev"},
	{AttrNoExec, "noexec"},
	{AttrNoAtime, "noatime"},
	{AttrStrictAtime, "strictatime"},
	{AttrNoDirAtime, "nodiratime"},
	{AttrIDMap, "idmapped"},
	{AttrNoSymFollow, "nosymfollow"},
}

// Has is true when all of the given attributes are set.
func (a Attr) Has(b Attr) bool { return a&b == b }

// String gives mountinfo's words, "rw" when nothing is set.
func (a Attr) String() string {
	words := make([]string, 0, len(attrNames))
	if !a.Has(AttrReadOnly) {
		words = append(words, "rw")
	}
	for _, n := range attrNames {
		if a.Has(n.attr) {
			words = append(words, n.name)
		}
	}
	if a&(AttrNoAtime|AttrStrictAtime) == 0 {
		words = append(words, "relatime")
	}
	return strings.Join(words, ",")
}

// Propagation says how a mount shares mount events (mount_namespaces(7)).
type Propagation struct {
	// Shared is the peer group's id, 0 when the mount is not shared.
	Shared uint64 `json:"shared,omitempty"`
	// Master is the peer group the mount receives events from, 0 for none.
	Master     uint64 `json:"master,omitempty"`
	Unbindable bool   `json:"unbindable,omitempty"`
}

// Mount is one entry of a mount table.
type Mount struct {
	// ID is the kernel's unique mount id, never used again; 0 where it has none, as
	// below Linux 6.8, or does not tell.
	ID uint64
	// OldID and OldParent are mountinfo's ids; the kernel reuses them.
	OldID     int
	OldParent int
	Dev       Dev
	// Root is the directory of the filesystem that the mount shows.
	Root string
	// RootDeleted is true when that directory was deleted (mountinfo's
	// "//deleted").
	RootDeleted bool
	// Path is the mount point as seen from the root of the mount namespace.
	Path        string
	Attr        Attr
	Propagation Propagation
	// FSType includes the subtype, as in "fuse.sshfs".
	FSType string
	// Source may name a device, an export or anything at all.
	Source string
	// SuperReadOnly is the superblock's own read-only flag.
	SuperReadOnly bool
	// SuperOptions are the filesystem's options. They may hold secrets and are
	// never printed.
	SuperOptions []string
}

// HasSuperOption is true when the filesystem shows the option, with or without
// a value.
func (m Mount) HasSuperOption(name string) bool {
	for _, o := range m.SuperOptions {
		if o == name || strings.HasPrefix(o, name+"=") {
			return true
		}
	}
	return false
}

// IsNFS is true for a filesystem of which mounts share a superblock although each
// shows a directory of its own on the server: one of them may be stale alone. The
// mount table shows "/" as the root of all, and tells them apart by source only.
func IsNFS(fsType string) bool { return fsType == "nfs" || fsType == "nfs4" }

// MayBeNode is true when the mount may show a device node: those share the
// superblock of the memory filesystem that /dev is on, and each stands for a
// storage of its own.
func (m Mount) MayBeNode() bool {
	return (m.FSType == "devtmpfs" || m.FSType == "tmpfs") && m.Root != "/"
}

// Same is true when both entries are the same mount.
func (m Mount) Same(o Mount) bool {
	if m.ID != 0 && o.ID != 0 {
		return m.ID == o.ID
	}
	return m.OldID == o.OldID && m.Dev == o.Dev && m.Path == o.Path
}

// placeholderAttr marks a mount that a rebind has placed and not yet finished. No
// driver mounts like this, so the mount table itself is the journal: whoever
// finds such a mount knows what it is and that nothing can be written or
// deleted through it.
const placeholderAttr = AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec | AttrNoSymFollow

// finalizedMark stays on a mount that is usable again until its copies in other
// mount namespaces are too. Two attributes, because somebody may have a reason
// to add either of them to a mount point.
const finalizedMark = AttrNoSymFollow | AttrNoDirAtime

// Unsettled is true for a mount that has the wanted attributes and the mark.
func (m Mount) Unfinalized(want Attr) bool {
	return !want.Has(finalizedMark) && m.Attr == want|finalizedMark
}

// Placeholder is true for a mount with attributes that one has only in the middle of a
// step: a container that starts then keeps them. A runtime that remounts it read-only
// clears all but the access time mode; somebody may want that alone.
func (m Mount) MaybePlaceholder(want Attr) bool {
	return (m.Placeholder() || m.Attr.Has(finalizedMark)) && !want.Has(AttrNoSymFollow) ||
		m.Attr.Has(AttrReadOnly|AttrNoDirAtime) && !want.Has(AttrNoDirAtime)
}

// maybePlaceholder is true for what has to be looked at for that.
func (m Mount) maybePlaceholder() bool { return m.Attr&finalizedMark != 0 }

// Interim is true for a mount that an unfinished rebind left behind.
func (m Mount) Placeholder() bool { return m.Attr.Has(placeholderAttr) }
