package node

import (
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Table is a mount table at one moment, indexed: a lookup costs the same among ten
// mounts and ten thousand. It never changes.
type Table struct {
	mounts []facts.Mount
	// Entries by mount point, by the name of the mount point's directory, and by
	// superblock.
	byPath index[string]
	byDir  index[string]
	byDev  index[facts.Dev]
	ids    map[int]struct{}
	// children counts the mounts on each mount.
	children map[int]int32
}

// NewTable takes mounts in any order.
func NewTable(mounts []facts.Mount) Table {
	t := Table{
		mounts:   mounts,
		byPath:   newIndex[string](len(mounts)),
		byDir:    newIndex[string](len(mounts)),
		byDev:    newIndex[facts.Dev](len(mounts)),
		ids:      make(map[int]struct{}, len(mounts)),
		children: map[int]int32{},
	}
	for i, m := range slices.Backward(mounts) {
		n := int32(i)
		t.byPath.add(m.Path, n)
		t.byDir.add(path.Base(path.Dir(m.Path)), n)
		t.byDev.add(m.Dev, n)
		t.ids[m.OldID] = struct{}{}
		t.children[m.OldParent]++
	}
	return t
}

// index has the entries of each key in their order: a list in one array, where a slice for each
// key would be half of the table.
type index[K comparable] struct {
	// first and next are one more than the number of an entry; 0 for none.
	first map[K]int32
	next  []int32
}

func newIndex[K comparable](entries int) index[K] {
	return index[K]{make(map[K]int32, entries), make([]int32, entries)}
}

// add puts an entry before all that the key has.
func (x index[K]) add(key K, n int32) { x.next[n], x.first[key] = x.first[key], n+1 }

func (x index[K]) of(key K) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n := x.first[key]; n != 0; n = x.next[n-1] {
			if !yield(n - 1) {
				return
			}
		}
	}
}

// Mounts returns all entries.
func (t Table) Mounts() []facts.Mount { return t.mounts }

// InDirectory returns the mounts whose mount point lies in a directory of that
// name, wherever the directory is.
func (t Table) InDirectory(name string) []facts.Mount { return t.pick(t.byDir.of(name)) }

// Of returns the mounts of one superblock.
func (t Table) Of(dev facts.Dev) []facts.Mount { return t.pick(t.byDev.of(dev)) }

// Beside returns the number of mounts on the same parent mount as m, m included.
func (t Table) Beside(m facts.Mount) int { return int(t.children[m.OldParent]) }

func (t Table) pick(entries iter.Seq[int32]) (mounts []facts.Mount) {
	for n := range entries {
		mounts = append(mounts, t.mounts[n])
	}
	return mounts
}

// Stack returns the mounts that a path walk to p meets exactly at p, top first;
// empty when nothing is mounted there. A mount that another one higher up hides is not
// among them. p is absolute and clean, and no component is a link.
func (t Table) Stack(p string) []facts.Mount {
	var stack []facts.Mount
	if t.byPath.first[p] == 0 {
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
func (t Table) ParentMount(p string) (facts.Mount, bool) {
	met := t.walk(p)
	if len(met) == 0 {
		return facts.Mount{}, false
	}
	return *met[len(met)-1], true
}

// walk returns the mounts that a path walk to p enters, in order.
func (t Table) walk(p string) []*facts.Mount {
	// Only mounts on the way can matter; they are few.
	way, met := make([]*facts.Mount, 0, 8), make([]*facts.Mount, 0, 8)
	for at := p; ; at = parentDir(at) {
		for n := range t.byPath.of(at) {
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

// parentDir is path.Dir for a clean path, and ends at "/" for one that is not absolute, too.
func parentDir(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "/"
}

// nextOnTheWay returns the mount that a walk meets next after entering current:
// the child with the shortest mount point, one on current's own root first.
func nextOnTheWay(way []*facts.Mount, current *facts.Mount) (next *facts.Mount) {
	for _, m := range way {
		if m.OldParent != current.OldID || m.OldID == current.OldID || !facts.Beneath(current.Path, m.Path) {
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
func (t Table) rootOf(way []*facts.Mount) *facts.Mount {
	for _, m := range way {
		if _, listed := t.ids[m.OldParent]; m.Path == "/" && (!listed || m.OldParent == m.OldID) {
			return m
		}
	}
	return nil
}
