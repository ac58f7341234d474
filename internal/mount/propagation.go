package mount

import (
	"path"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// groups are peer groups.
type groups map[uint64]bool

// reach reports whether a mount receives the events of one of the groups.
func (g groups) reach(m facts.Mount) bool { return g[m.Propagation.Shared] || g[m.Propagation.Master] }

// followers returns the peer groups that receive the events of one: a slave that is
// shared hands them on.
func followers(all []facts.Mount, group uint64) groups {
	found := groups{group: true}
	for grown := true; grown; {
		grown = false
		for _, m := range all {
			if g := m.Propagation.Shared; g != 0 && !found[g] && found[m.Propagation.Master] {
				found[g], grown = true, true
			}
		}
	}
	return found
}

// UnmountedWith returns the mounts among all that a umount of something on m, or at a
// directory below the root of m, may take too: those at the same directory of the
// filesystem in a mount that receives the events of m. That one may show more of the
// filesystem than m does.
func UnmountedWith(all []facts.Mount, m facts.Ref, below string) []facts.Mount {
	on, _ := find(all, m)
	at := path.Join(on.Root, below)
	if on.Propagation.Shared == 0 {
		return nil
	}
	receivers := followers(all, on.Propagation.Shared)
	mountPoints := map[int]string{}
	for _, e := range all {
		if e.OldID != on.OldID && facts.Beneath(e.Root, at) && receivers.reach(e) {
			mountPoints[e.OldID] = path.Join(e.Path, strings.TrimPrefix(at, strings.TrimSuffix(e.Root, "/")))
		}
	}
	var found []facts.Mount
	for _, e := range all {
		if at, is := mountPoints[e.OldParent]; is && e.Path == at {
			found = append(found, e)
		}
	}
	return found
}

// Copies says which mounts are copies of one that was just placed: what the kernel put
// at the same directory of a mount that shares the events of the parent mount. A mount
// that another process bound from the placed one, such as that of a container that
// started meanwhile, is in the same peer group but is none.
type Copies struct {
	of int // the placed mount
	// own are the peer groups of the placed mount and of those that follow it,
	// parents the same for its parent mount.
	own, parents groups
	// at is the mount point as a directory of the parent's filesystem.
	at string
}

// CopiesOf describes the copies of a mount; all holds the mounts of all mount
// namespaces. It is false when the mount or its parent is not among them.
func CopiesOf(all []facts.Mount, m, parent facts.Ref) (Copies, bool) {
	ours, found := find(all, m)
	below, foundBelow := find(all, parent)
	if !found || !foundBelow {
		return Copies{}, false
	}
	c := Copies{of: m.OldID, at: onFilesystem(below, ours.Path)}
	if group, parents := ours.Propagation.Shared, below.Propagation.Shared; group != 0 && parents != 0 {
		c.own, c.parents = followers(all, group), followers(all, parents)
	}
	return c, true
}

// Among returns the copies in the mount table of one namespace: none where the mount or its
// parent is in no peer group.
func (c Copies) Among(table []facts.Mount) []facts.Mount {
	byID := make(map[int]facts.Mount, len(table))
	for _, m := range table {
		byID[m.OldID] = m
	}
	var found []facts.Mount
	for _, m := range table {
		below, known := byID[m.OldParent]
		if m.OldID != c.of && known && c.own.reach(m) && c.parents.reach(below) && onFilesystem(below, m.Path) == c.at {
			found = append(found, m)
		}
	}
	return found
}

// onFilesystem returns a path beneath a mount as a path of the mounted filesystem.
func onFilesystem(m facts.Mount, p string) string {
	return path.Join(m.Root, strings.TrimPrefix(p, m.Path))
}

// find returns the last entry for a mount: a namespace that several tables show has
// several.
func find(all []facts.Mount, r facts.Ref) (found facts.Mount, ok bool) {
	for _, m := range all {
		if m.OldID == r.OldID {
			found, ok = m, true
		}
	}
	return found, ok
}
