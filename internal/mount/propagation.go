package mount

import (
	"path"
	"slices"
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
	on, _ := Find(all, m.OldID)
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

// CopiesOf returns the copies of a mount that was just placed: what the kernel put at the same
// directory of a mount that shares the events of the parent mount. There are none where the mount or
// its parent is in no peer group. A mount that another process bound from the placed one, such as that
// of a container that started meanwhile, is in the same peer group but is none.
//
// all holds the mounts of all mount namespaces. found is false when the mount or its parent is not
// among them.
func CopiesOf(all []facts.Mount, m, parent facts.Ref) (copies []facts.Mount, found bool) {
	ours, found := Find(all, m.OldID)
	below, foundBelow := Find(all, parent.OldID)
	if !found || !foundBelow || ours.Propagation.Shared == 0 {
		return nil, found && foundBelow
	}
	own := followers(all, ours.Propagation.Shared)
	copies = UnmountedWith(all, parent, strings.TrimPrefix(ours.Path, below.Path))
	return slices.DeleteFunc(copies, func(e facts.Mount) bool { return !own.reach(e) }), true
}

// Find returns a mount's entry in a table, by its old id.
func Find(all []facts.Mount, oldID int) (facts.Mount, bool) {
	at := slices.IndexFunc(all, func(m facts.Mount) bool { return m.OldID == oldID })
	if at < 0 {
		return facts.Mount{}, false
	}
	return all[at], true
}
