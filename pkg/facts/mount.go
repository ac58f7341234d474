package facts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Dev is a device number as mountinfo shows it. It is an address, not an
// identity: it does not survive a boot, and btrfs shows an anonymous one.
type Dev struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// ParseDev reads "major:minor".
func ParseDev(s string) (Dev, error) {
	major, minor, found := strings.Cut(s, ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if !found || err1 != nil || err2 != nil {
		return Dev{}, fmt.Errorf("device number %q is not major:minor", s)
	}
	return Dev{Major: uint32(ma), Minor: uint32(mi)}, nil
}

// String returns the "major:minor" of mountinfo and sysfs.
func (d Dev) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Zero reports whether there is no device.
func (d Dev) Zero() bool { return d == Dev{} }

// FUSEConnection returns the name in fusectl of the connection of a superblock: its device
// number as the kernel keeps it (fs/fuse/control.c), which is the minor but for fuseblk.
func (d Dev) FUSEConnection() uint64 { return uint64(d.Major)<<20 | uint64(d.Minor) }

// Ref names one mount.
type Ref struct {
	// ID is the unique mount id (Linux 6.8); 0 when unknown.
	ID uint64
	// OldID is mountinfo's id, which the kernel reuses; 0 when unknown.
	OldID int
}

// Same reports whether both name the same mount.
func (r Ref) Same(o Ref) bool {
	if r.ID != 0 && o.ID != 0 {
		return r.ID == o.ID
	}
	return r.OldID != 0 && r.OldID == o.OldID
}

// String names the mount in messages.
func (r Ref) String() string {
	if r.ID != 0 {
		return fmt.Sprintf("mount %#x", r.ID)
	}
	return fmt.Sprintf("mount %d", r.OldID)
}

// Mount is one entry of a mount table.
type Mount struct {
	// ID is the kernel's unique mount id, never used again; 0 where it has none, as
	// below Linux 6.8, or where it was not asked for.
	ID uint64
	// OldID and OldParent are mountinfo's ids; the kernel reuses them.
	OldID     int
	OldParent int
	Dev       Dev
	// Root is the directory of the filesystem that the mount shows.
	Root string
	// RootDeleted is true when that directory has no name any more (mountinfo's "//deleted"): it was deleted, or
	// (MayHang) its daemon or server did not answer a lookup, as any user may make. The next one that is answered
	// gives the name back.
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

// Ref returns what names the mount.
func (m Mount) Ref() Ref { return Ref{ID: m.ID, OldID: m.OldID} }

// Same reports whether both entries are the same mount.
func (m Mount) Same(o Mount) bool {
	if m.ID != 0 && o.ID != 0 {
		return m.ID == o.ID
	}
	return m.OldID == o.OldID && m.Dev == o.Dev && m.Path == o.Path
}

// OnDevice reports whether the superblock's number is that of a block device. btrfs and what has no device show an
// anonymous one, and Lustre a hash of its server's name (client_common_fill_super in its llite_lib.c).
func (m Mount) OnDevice() bool { return m.Dev.Major != 0 && !IsType(m.FSType, NoDisk) }

// HasSuperOption reports whether the filesystem shows the option, with or without a
// value.
func (m Mount) HasSuperOption(name string) bool {
	return slices.ContainsFunc(m.SuperOptions, func(o string) bool { return o == name || strings.HasPrefix(o, name+"=") })
}

// MayBeNode reports whether the mount may show a device node: those share the
// superblock of the memory filesystem that /dev is on, and each is a storage of its
// own.
func (m Mount) MayBeNode() bool { return IsType(m.FSType, DeviceNodes) && m.Root != "/" }

// Beneath reports whether the path p is dir or lies in it. Both are clean.
func Beneath(dir, p string) bool {
	_, is := Below(dir, p)
	return is
}

// Below returns what is left of the path p after dir, and whether it is dir or lies in it.
// Both are clean.
func Below(dir, p string) (rest string, below bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
