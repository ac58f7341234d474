package facts

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// at makes a mount; the table's root is 1.
func at(id, parent int, path string) Mount {
	return Mount{OldID: id, OldParent: parent, Path: path, Root: "/"}
}

func ids(mounts []Mount) []int {
	var list []int
	for _, m := range mounts {
		list = append(list, m.OldID)
	}
	return list
}

func TestStack(t *testing.T) {
	root := at(1, 0, "/")
	for name, tc := range map[string]struct {
		mounts []Mount
		path   string
		want   []int // top first
	}{
		"empty table":                   {nil, "/a", nil},
		"nothing there":                 {[]Mount{root}, "/a", nil},
		"the root":                      {[]Mount{root}, "/", []int{1}},
		"its own parent":                {[]Mount{at(1, 1, "/"), at(2, 1, "/a")}, "/a", []int{2}},
		"one":                           {[]Mount{root, at(2, 1, "/a")}, "/a", []int{2}},
		"a prefix of it":                {[]Mount{root, at(2, 1, "/a")}, "/ab", nil},
		"it is a prefix":                {[]Mount{root, at(2, 1, "/ab")}, "/a", nil},
		"above it":                      {[]Mount{root, at(2, 1, "/a")}, "/a/b", nil},
		"below it":                      {[]Mount{root, at(2, 1, "/a/b")}, "/a", nil},
		"a stack":                       {[]Mount{root, at(2, 1, "/a"), at(3, 2, "/a"), at(4, 3, "/a")}, "/a", []int{4, 3, 2}},
		"ids going down":                {[]Mount{root, at(9, 1, "/a"), at(5, 9, "/a"), at(3, 5, "/a")}, "/a", []int{3, 5, 9}},
		"nested":                        {[]Mount{root, at(2, 1, "/a"), at(3, 2, "/a/b"), at(4, 3, "/a/b/c")}, "/a/b/c", []int{4}},
		"hidden by one above":           {[]Mount{root, at(2, 1, "/a/b"), at(3, 1, "/a")}, "/a/b", nil},
		"hidden and mounted anew":       {[]Mount{root, at(2, 1, "/a/b"), at(3, 1, "/a"), at(4, 3, "/a/b")}, "/a/b", []int{4}},
		"hidden on the way by a stack":  {[]Mount{root, at(2, 1, "/a"), at(3, 2, "/a/b"), at(4, 2, "/a")}, "/a/b", nil},
		"on the top of a stack":         {[]Mount{root, at(2, 1, "/a"), at(4, 2, "/a"), at(3, 4, "/a/b")}, "/a/b", []int{3}},
		"the root mounted over":         {[]Mount{root, at(2, 1, "/a"), at(3, 1, "/")}, "/a", nil},
		"above a root mounted over":     {[]Mount{root, at(3, 1, "/"), at(2, 3, "/a")}, "/a", []int{2}},
		"both roots":                    {[]Mount{root, at(3, 1, "/")}, "/", []int{3, 1}},
		"another's child":               {[]Mount{root, at(2, 1, "/b"), at(3, 2, "/a")}, "/a", nil},
		"parent not in the table":       {[]Mount{root, at(3, 77, "/a")}, "/a", nil},
		"no root":                       {[]Mount{at(2, 1, "/a")}, "/a", nil},
		"a dash sorts before the slash": {[]Mount{root, at(2, 1, "/a-b"), at(3, 1, "/a"), at(4, 3, "/a/b")}, "/a/b", []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // in any order
				rand.Shuffle(len(tc.mounts), func(i, j int) { tc.mounts[i], tc.mounts[j] = tc.mounts[j], tc.mounts[i] })
				if got := ids(NewTable(tc.mounts).Stack(tc.path)); !slices.Equal(got, tc.want) {
					t.Fatalf("%v in %v, want %v", got, ids(tc.mounts), tc.want)
				}
			}
		})
	}
}

func TestIndexes(t *testing.T) {
	on := func(m Mount, dev Dev) Mount {
		m.Dev = dev
		return m
	}
	sdb, sdc := Dev{8, 16}, Dev{8, 32}
	table := NewTable([]Mount{
		at(1, 0, "/"), on(at(2, 1, "/k/pv1/mount"), sdb), on(at(3, 1, "/k/pv1"), sdc), on(at(4, 3, "/k/pv1/mount"), sdb),
		on(at(5, 1, "/other/pv1/x"), sdc), at(6, 1, "/k/pv10/mount"), at(7, 1, "/pv1"), at(8, 1, "/k/pv1x"),
	})
	for name, want := range map[string][]int{"pv1": {2, 4, 5}, "k": {3, 8}, "/": {1, 7}, "pv10": {6}, "mount": nil, "": nil, "pv": nil} {
		if got := ids(table.InDirectory(name)); !slices.Equal(got, want) {
			t.Errorf("in a directory %q: %v, want %v", name, got, want)
		}
	}
	for dev, want := range map[Dev][]int{sdb: {2, 4}, sdc: {3, 5}, {}: {1, 6, 7, 8}, {9, 9}: nil} {
		if got := ids(table.Of(dev)); !slices.Equal(got, want) {
			t.Errorf("of %s: %v, want %v", dev, got, want)
		}
	}
	// Who changes what was given changes nobody's table.
	table.Of(sdb)[0].Path = "/x"
	table.InDirectory("pv1")[0].Path = "/x"
	table.Stack("/k/pv1/mount")[0].Path = "/x"
	if got := ids(table.Of(sdb)); !slices.Equal(got, []int{2, 4}) || table.Of(sdb)[0].Path == "/x" || table.Stack("/k/pv1/mount")[0].Path == "/x" {
		t.Errorf("%+v", table.Of(sdb))
	}
}

func TestParentMount(t *testing.T) {
	table := NewTable([]Mount{at(1, 0, "/"), at(2, 1, "/a"), at(3, 2, "/a/b"), at(4, 3, "/a/b"), at(5, 1, "/c/d"), at(6, 1, "/c")})
	for p, want := range map[string]int{"/": 1, "/x/y": 1, "/a": 2, "/a/x": 2, "/ab": 1, "/a/b": 4, "/a/b/x": 4, "/c/d": 6, "/c/d/e": 6} {
		if m, found := table.ParentMount(p); !found || m.OldID != want {
			t.Errorf("%s lies on %d, want %d", p, m.OldID, want)
		}
	}
	if m, found := NewTable(nil).ParentMount("/a"); found {
		t.Errorf("on %+v", m)
	}
}
