package nodeserver

import (
	"slices"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/printable"
)

// section is one sentence of a message: what it begins with, and a list.
type section struct {
	lead string
	// items are in order of importance.
	items []string
	// plural is what items are called where some are only counted.
	plural string
	// rest says more of the items that are only counted; nil for nothing.
	rest func(shown int) string
}

// maxItems is how many items of a section are told at most; the rest is counted.
const maxItems = 8

// write returns the sentences in at most limit bytes: of each section as many items as
// have room, in full, and the rest counted. Where the first item of each is too long,
// all are cut alike.
func write(sections []section, limit int) string {
	sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.items) == 0 })
	text := func(shown, itemBytes int) string {
		texts := make([]string, 0, len(sections))
		for _, s := range sections {
			texts = append(texts, s.text(shown, itemBytes))
		}
		return strings.Join(texts, ". ")
	}
	for shown := maxItems; shown > 0; shown-- {
		if whole := text(shown, limit); len(whole) <= limit {
			return whole
		}
	}
	const shortest = 32
	for itemBytes := limit; itemBytes > shortest; itemBytes -= shortest {
		if cut := text(1, itemBytes); len(cut) <= limit {
			return cut
		}
	}
	return printable.Line(text(1, shortest), limit)
}

// text shows the first items, each in at most itemBytes, and counts the rest.
func (s section) text(shown, itemBytes int) string {
	shown = min(shown, len(s.items))
	items := make([]string, 0, shown)
	for _, item := range s.items[:shown] {
		items = append(items, printable.Line(item, itemBytes))
	}
	return s.lead + strings.Join(items, "; ") + s.tail(shown)
}

func (s section) tail(shown int) string {
	hidden := len(s.items) - shown
	if hidden <= 0 {
		return ""
	}
	tail := "; " + more(hidden, s.plural)
	if s.rest != nil {
		tail += ": " + s.rest(shown)
	}
	return tail
}

// more stands for items that are only counted.
func more(n int, plural string) string {
	if n == 1 {
		plural = strings.TrimSuffix(plural, "s")
	}
	return strconv.Itoa(n) + " more " + plural + printable.Ellipsis
}
