package facts

import (
	"path"
	"slices"
	"strings"
)

// Table is a mount table at one moment, indexed: a lookup costs the same among ten
// mounts and ten thousand. It never changes.
type Table struct {
	mounts []Mount
	// Entries by mount point, by the name of the mount point's directory, and by
	// superblock.
	byPath map[string][]int32
	byDir  map[string][]int32
	byDev  map[Dev][]int32
	byID   map[int]int32
	// children counts the mounts on each mount.
	children map[int]int32
}

// NewTable takes mounts in any order.
func NewTable(mounts []Mount) Table {
	t := Table{
		mounts:   mounts,
		byPath:   make(map[string][]int32, len(mounts)),
		byDir:    make(map[string][]int32, len(mounts)),
		byDev:    map[Dev][]int32{},
		byID:     make(map[int]int32, len(mounts)),
		children: map[int]int32{},
	}
	for i, m := range mounts {
		n, dir := int32(i), path.Base(path.Dir(m.Path))
		t.byPath[m.Path] = append(t.byPath[m.Path], n)
		t.byDir[dir] = append(t.byDir[dir], n)
		t.byDev[m.Dev] = append(t.byDev[m.Dev], n)
		t.byID[m.OldID] = n
		t.children[m.OldParent]++
	}
	return t
}

// Mounts returns all entries.
func (t Table) Mounts() []Mount { return t.mounts }

// InDirectory returns the mounts whose mount point lies in a directory of that
// name, wherever the directory is.
func (t Table) InDirectory(name string) []Mount { return t.pick(t.byDir[name]) }

// Of returns the mounts of one superblock.
func (t Table) Of(dev Dev) []Mount { return t.pick(t.byDev[dev]) }

// Beside returns the number of mounts on the same parent mount as m, m included.
func (t Table) Beside(m Mount) int { return int(t.children[m.OldParent]) }

func (t Table) pick(entries []int32) []Mount {
	mounts := make([]Mount, len(entries))
	for i, n := range entries {
		mounts[i] = t.mounts[n]
	}
	return mounts
}

// Stack returns the mounts that a path walk to p meets exactly at p, top first;
// empty when nothing is mounted there. A mount that another one higher up hides is not
// among them. p is absolute and clean, and no component is a link.
func (t Table) Stack(p string) []Mount {
	var stack []Mount
	if len(t.byPath[p]) == 0 {
		return nil
	}
	for _, m := range slices.Backward(t.walk(p)) {
		if m.Path == p {
			stack = append(stack, *m)
		}
	}
	return stack
}

// ParentMount returns the mount that a path walk to p ends on.
func (t Table) ParentMount(p string) (Mount, bool) {
	met := t.walk(p)
	if len(met) == 0 {
		return Mount{}, false
	}
	return *met[len(met)-1], true
}

// walk returns the mounts that a path walk to p enters, in order.
func (t Table) walk(p string) []*Mount {
	// Only mounts on the way can matter; they are few.
	way, met := make([]*Mount, 0, 8), make([]*Mount, 0, 8)
	for at := p; ; at = parentDir(at) {
		for _, n := range t.byPath[at] {
			way = append(way, &t.mounts[n])
		}
		if at == "/" {
			break
		}
	}
	for current := t.rootOf(way); current != nil; current = nextOnTheWay(way, current) {
		met = append(met, current)
	}
	return met
}

// parentDir is path.Dir for a clean path.
func parentDir(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "/"
}

// nextOnTheWay returns the mount that a walk meets next after entering current:
// the child with the shortest mount point, one on current's own root first.
func nextOnTheWay(way []*Mount, current *Mount) (next *Mount) {
	for _, m := range way {
		if m.OldParent != current.OldID || m.OldID == current.OldID || !Beneath(current.Path, m.Path) {
			continue
		}
		if next == nil || len(m.Path) < len(next.Path) {
			next = m
		}
	}
	return next
}

// rootOf returns the mount that the namespace's root directory is on: the one
// whose parent is not in the table.
func (t Table) rootOf(way []*Mount) *Mount {
	for _, m := range way {
		if _, listed := t.byID[m.OldParent]; m.Path == "/" && (!listed || m.OldParent == m.OldID) {
			return m
		}
	}
	return nil
}
