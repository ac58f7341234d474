package facts

import (
	"strings"

	"golang.org/x/sys/unix"
)

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

const (
	// AttrSettable are the attributes that a step decides on, beside the access time
	// mode.
	AttrSettable = AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec | AttrNoDirAtime | AttrNoSymFollow
	// AttrKnown are the attributes that mountinfo shows.
	AttrKnown = AttrSettable | AttrNoAtime | AttrStrictAtime | AttrIDMap
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

// Has reports whether all of the given attributes are set.
func (a Attr) Has(b Attr) bool { return a&b == b }

// String returns mountinfo's words, "rw" when nothing is set.
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

// ParseAttr reads the per-mount options. Strict access times have no word of
// their own: they are what is left without relatime and noatime.
func ParseAttr(options string) Attr {
	a := AttrStrictAtime
	for word := range strings.SplitSeq(options, ",") {
		if word == "relatime" || word == "noatime" {
			a &^= AttrStrictAtime
		}
		for _, n := range attrNames {
			if n.name == word {
				a |= n.attr
			}
		}
	}
	return a
}

// A step marks its unfinished mounts by attributes that no driver mounts with, so
// the mount table itself is the journal: a later call knows such a mount.
const (
	// AttrPlaceholder marks a mount that was placed and not yet finalized: nothing can
	// be written or deleted through it.
	AttrPlaceholder = AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec | AttrNoSymFollow
	// AttrUnfinalized stays on a mount that is usable again until its copies in other
	// mount namespaces are too. Two attributes, because a user may have a reason to
	// add either of them to a mount point.
	AttrUnfinalized = AttrNoSymFollow | AttrNoDirAtime
	// AttrGuard stays on a mount in a container until it is alone at its mount point
	// and has its final propagation and attributes. Hardly any workload mounts like
	// this, so it marks, with a record of what was replaced, an interrupted replacement.
	AttrGuard = AttrReadOnly | AttrNoSymFollow
	// attrRemounted is what is left of AttrPlaceholder where kubelet binds a subPath of a
	// placeholder: it mounts that again with what statfs(2) says, and has no word for
	// nosymfollow (getBindMountOptions of k8s.io/mount-utils).
	attrRemounted = AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec
)

// Placeholder reports whether an unfinished step left the mount behind.
func (m Mount) Placeholder() bool { return m.Attr.Has(AttrPlaceholder) }

// Unfinalized reports whether the mount has the wanted attributes and the mark.
func (m Mount) Unfinalized(want Attr) bool {
	return !want.Has(AttrUnfinalized) && m.Attr == want|AttrUnfinalized
}

// Guarded reports whether an interrupted replacement left the mount in a container.
func (m Mount) Guarded() bool { return m.Attr.Has(AttrGuard) }

// MaybePlaceholder reports whether the mount has attributes that one has only in the
// middle of a step: a container that starts then keeps them. A runtime that remounts it
// read-only clears all but the access time mode, which a user may want alone.
func (m Mount) MaybePlaceholder(want Attr) bool {
	return (m.Placeholder() || m.Attr.Has(AttrUnfinalized)) && !want.Has(AttrNoSymFollow) ||
		m.Attr.Has(AttrReadOnly|AttrNoDirAtime) && !want.Has(AttrNoDirAtime) ||
		m.Attr&AttrPlaceholder == attrRemounted && !want.Has(AttrNoExec)
}

// mayBeLeft reports whether the mount has any attribute that an unfinished step leaves, or all that kubelet keeps.
func (m Mount) mayBeLeft() bool { return m.Attr&AttrUnfinalized != 0 || m.Attr.Has(attrRemounted) }
