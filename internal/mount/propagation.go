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

// CopiesOf returns what finds, in the mount table of one namespace, the copies of a mount that
// was just placed: what the kernel put at the same directory of a mount that shares the events
// of the parent mount. There are none where the mount or its parent is in no peer group. A mount
// that another process bound from the placed one, such as that of a container that started
// meanwhile, is in the same peer group but is none.
//
// all holds the mounts of all mount namespaces. It is false when the mount or its parent is not
// among them.
func CopiesOf(all []facts.Mount, m, parent facts.Ref) (among func(table []facts.Mount) []facts.Mount, _ bool) {
	ours, found := find(all, m)
	below, foundBelow := find(all, parent)
	if !found || !foundBelow {
		return nil, false
	}
	var own, parents groups // each with those that follow it
	if ours.Propagation.Shared != 0 && below.Propagation.Shared != 0 {
		own, parents = followers(all, ours.Propagation.Shared), followers(all, below.Propagation.Shared)
	}
	at := onFilesystem(below, ours.Path)
	return func(table []facts.Mount) (copies []facts.Mount) {
		byID := make(map[int]facts.Mount, len(table))
		for _, e := range table {
			byID[e.OldID] = e
		}
		for _, e := range table {
			on, known := byID[e.OldParent]
			if e.OldID != m.OldID && known && own.reach(e) && parents.reach(on) && onFilesystem(on, e.Path) == at {
				copies = append(copies, e)
			}
		}
		return copies
	}, true
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
