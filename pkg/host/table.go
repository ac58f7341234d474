package host

import (
	"path"
	"strings"
)

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
	var stack []Mount
	for _, m := range t.walk(p) {
		if m.Path == p {
			stack = append([]Mount{m}, stack...)
		}
	}
	return stack
}

// Ground gives the mount that a path walk to p ends on.
func (t Table) Ground(p string) (Mount, bool) {
	met := t.walk(p)
	if len(met) == 0 {
		return Mount{}, false
	}
	return met[len(met)-1], true
}

// walk gives the mounts that a path walk to p enters, in order.
func (t Table) walk(p string) []Mount {
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
	var met []Mount
	for ok {
		met = append(met, current)
		current, ok = nextOnTheWay(way, current)
	}
	return met
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

// Twins gives the mounts that would vanish together with m, which stands on the
// root of another mount, if it were unmounted: those at the same directory of
// the mounts that receive events from m's parent (mount_namespaces(7),
// "Propagation").
func (t Table) Twins(m Mount) []Mount {
	var parent Mount
	for _, p := range t.mounts {
		if p.OldID == m.OldParent {
			parent = p
		}
	}
	if parent.Propagation.Shared == 0 {
		return nil
	}
	// A slave that is shared hands events on.
	groups := map[uint64]bool{parent.Propagation.Shared: true}
	for grown := true; grown; {
		grown = false
		for _, p := range t.mounts {
			if g := p.Propagation.Shared; g != 0 && groups[p.Propagation.Master] && !groups[g] {
				groups[g], grown = true, true
			}
		}
	}
	at := map[int]string{} // where m would be on each receiver
	for _, p := range t.mounts {
		if p.OldID == parent.OldID || !groups[p.Propagation.Shared] && !groups[p.Propagation.Master] {
			continue
		}
		if onTheWay(p.Root, parent.Root) {
			at[p.OldID] = path.Join(p.Path, strings.TrimPrefix(parent.Root, p.Root))
		}
	}
	var twins []Mount
	for _, c := range t.mounts {
		if where, receives := at[c.OldParent]; receives && c.Path == where {
			twins = append(twins, c)
		}
	}
	return twins
}
