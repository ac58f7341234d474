package mount

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// propagating are a volume on a shared parent (groups 1 and 2), a copy of it in another
// namespace (a slave of the parent), a bind of it elsewhere, and what is mounted on each; and a
// third namespace's own mount at the same place.
const propagating = `1 0 8:1 / / rw shared:1 - ext4 /dev/a rw
2 1 8:2 / /k/m rw shared:2 - ext4 /dev/b rw
3 2 0:9 / /k/m rw shared:3 - fuse x rw
11 10 8:1 / /host rw master:1 - ext4 /dev/a rw
12 11 8:2 / /host/k/m rw master:2 - ext4 /dev/b rw
13 12 0:9 / /host/k/m rw - fuse x rw
20 1 8:2 / /other rw shared:2 - ext4 /dev/b rw
21 20 0:7 / /other rw - tmpfs x rw
22 1 8:2 /dir /sub rw shared:2 - ext4 /dev/b rw
23 22 0:7 / /sub rw - tmpfs x rw
30 1 8:2 / /private rw - ext4 /dev/b rw
40 39 8:1 / / rw master:1 - ext4 /dev/a rw
41 40 0:8 / /k/m rw shared:4 - tmpfs x rw
`

func ofNamespace(t *testing.T) []facts.Mount {
	t.Helper()
	all, err := Parse(strings.NewReader(propagating))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestUnmountedWith(t *testing.T) {
	all := ofNamespace(t)
	for m, want := range map[int][]int{2: {13, 21}, 12: nil, 20: {3, 13}, 22: nil, 30: nil, 99: nil} {
		if got := ids(UnmountedWith(all, facts.Ref{OldID: m}, "")); !slices.Equal(got, want) {
			t.Errorf("on %d: %v, want %v", m, got, want)
		}
	}
}

func TestCopiesOf(t *testing.T) {
	all := ofNamespace(t)
	copies, found := CopiesOf(all, facts.Ref{OldID: 2}, facts.Ref{OldID: 1})
	if got := ids(copies); !found || !slices.Equal(got, []int{12}) {
		t.Errorf("copies %v, %v", got, found)
	}
	if ofPrivate, found := CopiesOf(all, facts.Ref{OldID: 30}, facts.Ref{OldID: 1}); !found || len(ofPrivate) != 0 {
		t.Errorf("of a private mount: %v", found)
	}
	for _, pair := range [][2]int{{99, 1}, {2, 99}} {
		if _, found := CopiesOf(all, facts.Ref{OldID: pair[0]}, facts.Ref{OldID: pair[1]}); found {
			t.Errorf("of %v, which is not mounted", pair)
		}
	}
}

func ids(mounts []facts.Mount) []int {
	var list []int
	for _, m := range mounts {
		list = append(list, m.OldID)
	}
	return list
}
