package report

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxTextBytes bounds an event's message, as the API does.
const maxTextBytes = 1024

// podsOf returns the UIDs of the pods whose mount points a report has.
func podsOf(r healer.Report) []string {
	all := map[string]bool{}
	for _, d := range []healer.Diagnosis{r.Before, r.After} {
		for _, p := range d.Case.MountPoints {
			if p.PodUID != "" {
				all[p.PodUID] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// line returns a text as a message: one line of valid UTF-8, with a mark where it was
// cut.
func line(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= maxTextBytes {
		return text
	}
	const mark = "…"
	cut := maxTextBytes - len(mark)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}
