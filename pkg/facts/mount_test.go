package facts

import "testing"

// What String prints, the parser reads back; in mountinfo's words.
func TestAttrRoundTrip(t *testing.T) {
	flags := []Attr{AttrReadOnly, AttrNoSUID, AttrNoDev, AttrNoExec, AttrNoDirAtime, AttrIDMap, AttrNoSymFollow}
	for _, atime := range []Attr{0, AttrNoAtime, AttrStrictAtime} {
		for set := range 1 << len(flags) {
			a := atime
			for i, f := range flags {
				if set&(1<<i) != 0 {
					a |= f
				}
			}
			if got := ParseAttr(a.String()); got != a {
				t.Fatalf("%#x prints as %q, which reads as %#x", uint64(a), a, uint64(got))
			}
		}
	}
}

func TestPlaceholder(t *testing.T) {
	all := AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec | AttrNoSymFollow
	if !(Mount{Attr: all | AttrNoAtime}).Placeholder() {
		t.Error("an placeholder is not known again")
	}
	for _, missing := range []Attr{AttrReadOnly, AttrNoSUID, AttrNoDev, AttrNoExec, AttrNoSymFollow} {
		if (Mount{Attr: all &^ missing}).Placeholder() {
			t.Errorf("placeholder without %s", missing)
		}
	}
}

// A container's mount that was bound of a placeholder is known again, whoever mounted it anew, and
// no other is.
func TestMaybePlaceholder(t *testing.T) {
	const want = AttrNoSUID | AttrNoDev
	for name, tc := range map[string]struct {
		options string
		want    Attr
		is      bool
	}{
		"a placeholder":              {"ro,nosuid,nodev,noexec,relatime,nosymfollow", want, true},
		"a subPath of one":           {"ro,nosuid,nodev,noexec,relatime", want, true},
		"not finalized, remounted":   {"ro,nosuid,nodev,nodiratime,relatime", want, true},
		"the volume":                 {"rw,nosuid,nodev,relatime", want, false},
		"the volume, to read":        {"ro,nosuid,nodev,relatime", want, false},
		"one without exec, to read":  {"ro,nosuid,nodev,noexec,relatime", want | AttrNoExec, false},
		"one without exec, to write": {"rw,nosuid,nodev,noexec,relatime", want | AttrNoExec, false},
	} {
		current := Dev{Major: 0, Minor: 60}
		m := Mount{Dev: current, Attr: ParseAttr(tc.options)}
		if got := m.MaybePlaceholder(tc.want); got != tc.is {
			t.Errorf("%s: %t", name, got)
		}
		if tc.is && !(Filter{Current: current}).Wants(m) {
			t.Errorf("%s is not looked for", name)
		}
	}
}

func TestSameMount(t *testing.T) {
	m := Mount{ID: 1, OldID: 2, Dev: Dev{8, 1}, Path: "/m"}
	noID := m
	noID.ID = 0
	for name, tc := range map[string]struct {
		a, b Mount
		want bool
	}{
		"itself":                 {m, m, true},
		"another id":             {m, Mount{ID: 9, OldID: 2, Dev: Dev{8, 1}, Path: "/m"}, false},
		"changed, the same id":   {m, Mount{ID: 1, Path: "/moved"}, true},
		"by the old id":          {m, noID, true},
		"old id of another path": {noID, Mount{OldID: 2, Dev: Dev{8, 1}, Path: "/n"}, false},
		"old id used again":      {noID, Mount{OldID: 2, Dev: Dev{8, 2}, Path: "/m"}, false},
	} {
		if tc.a.Same(tc.b) != tc.want || tc.b.Same(tc.a) != tc.want {
			t.Errorf("%s: want %v", name, tc.want)
		}
	}
}

// An attribute that somebody added to a mount point is no mark of ours.
func TestUnfinalized(t *testing.T) {
	want := AttrNoSUID
	for attr, unfinalized := range map[Attr]bool{
		want | AttrNoSymFollow | AttrNoDirAtime: true,
		want:                                    false,
		want | AttrNoSymFollow:                  false,
		want | AttrNoDirAtime:                   false,
		AttrNoSymFollow | AttrNoDirAtime:        false,
		want | AttrReadOnly | AttrNoSymFollow | AttrNoDirAtime: false,
	} {
		if got := (Mount{Attr: attr}).Unfinalized(want); got != unfinalized {
			t.Errorf("%s: %v, want %v", attr, got, unfinalized)
		}
	}
	marked := want | AttrNoSymFollow | AttrNoDirAtime
	if (Mount{Attr: marked}).Unfinalized(marked) {
		t.Error("a mount point that is recorded with both attributes is finalized")
	}
}

func TestSameRef(t *testing.T) {
	for _, tc := range []struct {
		a, b Ref
		want bool
	}{
		{Ref{ID: 1, OldID: 2}, Ref{ID: 1, OldID: 2}, true},
		{Ref{ID: 1, OldID: 2}, Ref{ID: 1, OldID: 3}, true},
		{Ref{ID: 1, OldID: 2}, Ref{ID: 9, OldID: 2}, false}, // used again
		{Ref{ID: 1, OldID: 2}, Ref{OldID: 2}, true},
		{Ref{OldID: 2}, Ref{OldID: 3}, false},
		{Ref{ID: 1}, Ref{OldID: 3}, false},
		{Ref{}, Ref{}, false}, // nothing known is nothing shown
	} {
		if tc.a.Same(tc.b) != tc.want || tc.b.Same(tc.a) != tc.want {
			t.Errorf("%+v and %+v: want %v", tc.a, tc.b, tc.want)
		}
	}
}

func TestHasSuperOption(t *testing.T) {
	m := Mount{SuperOptions: []string{"rw", "shutdown", "errors=continue", "emergency_rodent"}}
	for option, want := range map[string]bool{"shutdown": true, "errors": true, "emergency_ro": false, "continue": false, "": false} {
		if m.HasSuperOption(option) != want {
			t.Errorf("%q: %v", option, !want)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, tc := range []struct {
		dir, path, rest string
		below           bool
	}{
		{dir: "/", path: "/", below: true},
		{dir: "/", path: "/a", rest: "a", below: true},
		{dir: "/a", path: "/a", below: true},
		{dir: "/a", path: "/a/b/c", rest: "b/c", below: true},
		{dir: "/a", path: "/ab"},
		{dir: "/a/b", path: "/a"},
		{dir: "/a", path: "/"},
	} {
		rest, below := Below(tc.dir, tc.path)
		if below != tc.below || below && rest != tc.rest || Beneath(tc.dir, tc.path) != below {
			t.Errorf("%s below %s: %q, %v", tc.path, tc.dir, rest, below)
		}
	}
}
