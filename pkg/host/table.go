package host

import "strings"

// Table is a mount table at one moment.
type Table struct {
	mounts []Mount
}

// NewTable takes mounts in any order.
func NewTable(mounts []Mount) Table { return Table{mounts: mounts} }

// Mounts gives all entries.
func (t Table) Mounts() []Mount { return t.mounts }

// Stack gives the mounts that a path walk to p meets exactly at p, top first;
// empty when nothing is mounted there. A mount that another one higher up hides
// is not among them. p is absolute and clean, and no component is a link.
func (t Table) Stack(p string) []Mount {
	// Only mounts on the way can matter; they are few.
	var way []Mount
	byID := map[int]bool{}
	for _, m := range t.mounts {
		if onTheWay(m.Path, p) {
			way = append(way, m)
			byID[m.OldID] = true
		}
	}
	current, ok := rootOf(way, byID)
	if !ok {
		return nil
	}
	var stack []Mount
	for {
		if current.Path == p {
			stack = append([]Mount{current}, stack...)
		}
		next, ok := nextOnTheWay(way, current)
		if !ok {
			return stack
		}
		current = next
	}
}

// nextOnTheWay gives the mount that a walk meets next after entering current:
// the child with the shortest mount point, one on current's own root first.
func nextOnTheWay(way []Mount, current Mount) (next Mount, found bool) {
	for _, m := range way {
		if m.OldParent != current.OldID || m.OldID == current.OldID || !onTheWay(current.Path, m.Path) {
			continue
		}
		if !found || len(m.Path) < len(next.Path) {
			next, found = m, true
		}
	}
	return next, found
}

// rootOf gives the mount that the namespace's root directory is on: the one
// whose parent is not in the table.
func rootOf(way []Mount, byID map[int]bool) (Mount, bool) {
	for _, m := range way {
		if m.Path == "/" && (!byID[m.OldParent] || m.OldParent == m.OldID) {
			return m, true
		}
	}
	return Mount{}, false
}

// onTheWay is true when a walk to p passes q.
func onTheWay(q, p string) bool {
	return q == "/" || p == q || strings.HasPrefix(p, q+"/")
}

// OnSuperblock gives the mounts of one superblock.
func (t Table) OnSuperblock(dev Dev) []Mount {
	var found []Mount
	for _, m := range t.mounts {
		if m.Dev == dev {
			found = append(found, m)
		}
	}
	return found
}

// Twins gives the mounts that would vanish together with m if it were
// unmounted: those standing on the root of the other members of the peer group
// that m's parent belongs to (mount_namespaces(7), "Propagation").
func (t Table) Twins(m Mount) []Mount {
	var group uint64
	for _, p := range t.mounts {
		if p.OldID == m.OldParent {
			group = p.Propagation.Shared
		}
	}
	if group == 0 {
		return nil
	}
	peers := map[int]string{}
	for _, p := range t.mounts {
		if p.OldID != m.OldParent && (p.Propagation.Shared == group || p.Propagation.Master == group) {
			peers[p.OldID] = p.Path
		}
	}
	var twins []Mount
	for _, c := range t.mounts {
		if path, isPeer := peers[c.OldParent]; isPeer && c.Path == path {
			twins = append(twins, c)
		}
	}
	return twins
}
