package nodeserver

import (
	"strings"
	"testing"
)

func TestSectionsShareTheLimit(t *testing.T) {
	long := strings.Repeat("x", 60)
	list := func(lead string, n int) section {
		return section{lead: lead, items: strings.Fields(strings.Repeat(long+" ", n)), plural: "steps"}
	}
	short := sentence("short")
	for name, tc := range map[string]struct {
		sections []section
		want     []string
	}{
		"all fit":                {[]section{short, {}, short}, []string{"short", "short"}},
		"as many of each":        {[]section{list("A ", 9), list("B ", 9)}, []string{"A " + long + "; " + long + "; 7 more steps…", "B " + long + "; " + long + "; 7 more steps…"}},
		"the only long one":      {[]section{list("A ", 4), short}, []string{"A " + strings.Join([]string{long, long, long, long}, "; "), "short"}},
		"one between short ones": {[]section{short, list("B ", 9), short}, []string{"short", "B " + long + "; " + long + "; " + long + "; " + long + "; 5 more steps…", "short"}},
		"not one fits":           {[]section{sentence(strings.Repeat("a", 400))}, []string{strings.Repeat("a", 400)}},
		"one is more, not ones":  {[]section{list("A ", 5)}, []string{"A " + strings.Join([]string{long, long, long, long}, "; ") + "; 1 more step…"}},
		"nothing to be told yet": {[]section{{}, {}}, []string{""}},
	} {
		if got, fits := write(tc.sections, 300); got != strings.Join(tc.want, ". ") || fits != (len(got) <= 300) {
			t.Errorf("%s: %d bytes, fits: %v\ngot  %s\nwant %s", name, len(got), fits, got, strings.Join(tc.want, ". "))
		}
	}
}
