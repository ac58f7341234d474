package healer

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// redactFrom is the shortest secret that is looked for in texts: shorter ones
// occur in any sentence.
const redactFrom = 4

// Redact takes the values out of a text that others wrote. Nobody is meant to
// put them there; this is for the driver or tool that does anyway.
func (s Secrets) Redact(text string) string {
	if len(s) == 0 {
		return text
	}
	// Longest first, or a secret within a longer one would leave its rest.
	values := slices.SortedFunc(maps.Values(s), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	for _, v := range values {
		if len(v) >= redactFrom {
			text = strings.ReplaceAll(text, v, redacted)
		}
	}
	return text
}
