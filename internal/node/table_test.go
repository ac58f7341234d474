package node

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// mountAt makes a mount; the table's root is 1.
func mountAt(id, parent int, path string) facts.Mount {
	return facts.Mount{OldID: id, OldParent: parent, Path: path, Root: "/"}
}

func idsOf(mounts []facts.Mount) []int {
	var list []int
	for _, m := range mounts {
		list = append(list, m.OldID)
	}
	return list
}

func TestStack(t *testing.T) {
	root := mountAt(1, 0, "/")
	for name, tc := range map[string]struct {
		mounts []facts.Mount
		path   string
		want   []int // top first
	}{
		"empty table":                   {nil, "/a", nil},
		"nothing there":                 {[]facts.Mount{root}, "/a", nil},
		"the root":                      {[]facts.Mount{root}, "/", []int{1}},
		"its own parent":                {[]facts.Mount{mountAt(1, 1, "/"), mountAt(2, 1, "/a")}, "/a", []int{2}},
		"one":                           {[]facts.Mount{root, mountAt(2, 1, "/a")}, "/a", []int{2}},
		"a prefix of it":                {[]facts.Mount{root, mountAt(2, 1, "/a")}, "/ab", nil},
		"it is a prefix":                {[]facts.Mount{root, mountAt(2, 1, "/ab")}, "/a", nil},
		"above it":                      {[]facts.Mount{root, mountAt(2, 1, "/a")}, "/a/b", nil},
		"below it":                      {[]facts.Mount{root, mountAt(2, 1, "/a/b")}, "/a", nil},
		"a stack":                       {[]facts.Mount{root, mountAt(2, 1, "/a"), mountAt(3, 2, "/a"), mountAt(4, 3, "/a")}, "/a", []int{4, 3, 2}},
		"ids going down":                {[]facts.Mount{root, mountAt(9, 1, "/a"), mountAt(5, 9, "/a"), mountAt(3, 5, "/a")}, "/a", []int{3, 5, 9}},
		"nested":                        {[]facts.Mount{root, mountAt(2, 1, "/a"), mountAt(3, 2, "/a/b"), mountAt(4, 3, "/a/b/c")}, "/a/b/c", []int{4}},
		"hidden by one above":           {[]facts.Mount{root, mountAt(2, 1, "/a/b"), mountAt(3, 1, "/a")}, "/a/b", nil},
		"hidden and mounted anew":       {[]facts.Mount{root, mountAt(2, 1, "/a/b"), mountAt(3, 1, "/a"), mountAt(4, 3, "/a/b")}, "/a/b", []int{4}},
		"hidden on the way by a stack":  {[]facts.Mount{root, mountAt(2, 1, "/a"), mountAt(3, 2, "/a/b"), mountAt(4, 2, "/a")}, "/a/b", nil},
		"on the top of a stack":         {[]facts.Mount{root, mountAt(2, 1, "/a"), mountAt(4, 2, "/a"), mountAt(3, 4, "/a/b")}, "/a/b", []int{3}},
		"the root mounted over":         {[]facts.Mount{root, mountAt(2, 1, "/a"), mountAt(3, 1, "/")}, "/a", nil},
		"above a root mounted over":     {[]facts.Mount{root, mountAt(3, 1, "/"), mountAt(2, 3, "/a")}, "/a", []int{2}},
		"both roots":                    {[]facts.Mount{root, mountAt(3, 1, "/")}, "/", []int{3, 1}},
		"another's child":               {[]facts.Mount{root, mountAt(2, 1, "/b"), mountAt(3, 2, "/a")}, "/a", nil},
		"parent not in the table":       {[]facts.Mount{root, mountAt(3, 77, "/a")}, "/a", nil},
		"no root":                       {[]facts.Mount{mountAt(2, 1, "/a")}, "/a", nil},
		"a dash sorts before the slash": {[]facts.Mount{root, mountAt(2, 1, "/a-b"), mountAt(3, 1, "/a"), mountAt(4, 3, "/a/b")}, "/a/b", []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // in any order
				rand.Shuffle(len(tc.mounts), func(i, j int) { tc.mounts[i], tc.mounts[j] = tc.mounts[j], tc.mounts[i] })
				if got := idsOf(NewTable(tc.mounts).Stack(tc.path)); !slices.Equal(got, tc.want) {
					t.Fatalf("%v in %v, want %v", got, idsOf(tc.mounts), tc.want)
				}
			}
		})
	}
}

func TestIndexes(t *testing.T) {
	on := func(m facts.Mount, dev facts.Dev) facts.Mount {
		m.Dev = dev
		return m
	}
	sdb, sdc := facts.Dev{Major: 8, Minor: 16}, facts.Dev{Major: 8, Minor: 32}
	table := NewTable([]facts.Mount{
		mountAt(1, 0, "/"), on(mountAt(2, 1, "/k/pv1/mount"), sdb), on(mountAt(3, 1, "/k/pv1"), sdc), on(mountAt(4, 3, "/k/pv1/mount"), sdb),
		on(mountAt(5, 1, "/other/pv1/x"), sdc), mountAt(6, 1, "/k/pv10/mount"), mountAt(7, 1, "/pv1"), mountAt(8, 1, "/k/pv1x"),
	})
	for name, want := range map[string][]int{"pv1": {2, 4, 5}, "k": {3, 8}, "/": {1, 7}, "pv10": {6}, "mount": nil, "": nil, "pv": nil} {
		if got := idsOf(table.InDirectory(name)); !slices.Equal(got, want) {
			t.Errorf("in a directory %q: %v, want %v", name, got, want)
		}
	}
	for dev, want := range map[facts.Dev][]int{sdb: {2, 4}, sdc: {3, 5}, {}: {1, 6, 7, 8}, {Major: 9}: nil} {
		if got := idsOf(table.Of(dev)); !slices.Equal(got, want) {
			t.Errorf("of %s: %v, want %v", dev, got, want)
		}
	}
	// Who changes what was given changes nobody's table.
	table.Of(sdb)[0].Path = "/x"
	table.InDirectory("pv1")[0].Path = "/x"
	table.Stack("/k/pv1/mount")[0].Path = "/x"
	if got := idsOf(table.Of(sdb)); !slices.Equal(got, []int{2, 4}) || table.Of(sdb)[0].Path == "/x" || table.Stack("/k/pv1/mount")[0].Path == "/x" {
		t.Errorf("%+v", table.Of(sdb))
	}
}

func TestParentMount(t *testing.T) {
	table := NewTable([]facts.Mount{mountAt(1, 0, "/"), mountAt(2, 1, "/a"), mountAt(3, 2, "/a/b"), mountAt(4, 3, "/a/b"), mountAt(5, 1, "/c/d"), mountAt(6, 1, "/c")})
	for p, want := range map[string]int{"/": 1, "/x/y": 1, "/a": 2, "/a/x": 2, "/ab": 1, "/a/b": 4, "/a/b/x": 4, "/c/d": 6, "/c/d/e": 6} {
		if m, found := table.ParentMount(p); !found || m.OldID != want {
			t.Errorf("%s lies on %d, want %d", p, m.OldID, want)
		}
	}
	if m, found := NewTable(nil).ParentMount("/a"); found {
		t.Errorf("on %+v", m)
	}
}

func FuzzStack(f *testing.F) {
	f.Add(`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext4 /dev/root rw,errors=continue`)
	f.Add(`1 0 0:5 /a\040b\134 /m\011//deleted ro,idmapped unbindable - fuse.x s\043 rw,context="a:b,c"`)
	f.Add("\n - \n" + `1 0 0:5 / / - - - - "`)
	f.Fuzz(func(t *testing.T, table string) {
		mounts, err := mount.Parse(strings.NewReader(table))
		if err != nil {
			return
		}
		if lines := strings.Count(strings.TrimSuffix(table, "\n"), "\n") + 1; table != "" && len(mounts) > lines {
			t.Errorf("%d mounts in %d lines", len(mounts), lines)
		}
		tab := NewTable(mounts)
		for _, m := range mounts {
			for _, s := range tab.Stack(m.Path) {
				if s.Path != m.Path {
					t.Errorf("%q is on the stack of %q", s.Path, m.Path)
				}
			}
			_ = m.Attr.String()
		}
	})
}
