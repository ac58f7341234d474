package printable

import "testing"

func TestLine(t *testing.T) {
	for _, tc := range []struct {
		in    string
		limit int
		want  string
	}{
		{"plain", 5, "plain"},
		{"plainer", 6, "pla…"},
		{"a\nb\tc\x00\x7f\u202e\u2028\U000e0001", 100, `a\nb\tc\x00\x7f\u202e\u2028\U000e0001`},
		{"\xff\x05é", 100, `\xff\x05é`},
		{"éééé", 8, "éééé"},
		{"ééééé", 8, "éé…"},
		{"abc\n", 4, "a…"},
		{"abc", 3, "abc"},
		{"abcd", 3, "…"},
		{"abcd", 2, ""},
		{"", 2, ""},
		{`back\slash "q"`, 100, `back\slash "q"`},
	} {
		if got := Line(tc.in, tc.limit); got != tc.want {
			t.Errorf("Line(%q, %d) = %q, want %q", tc.in, tc.limit, got, tc.want)
		}
	}
}
