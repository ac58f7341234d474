package nodeserver

import (
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
	// short is what is said of each item where it is only counted; nil for nothing.
	short []string
}

// write returns the sentences in at most limit bytes: as many items of each as there is
// room for, one at least; the rest is counted. Where the first ones are too long, all are
// cut alike.
func write(sections []section, limit int) string {
	const mostItems, shortest = 10, 32
	text := func(items, itemBytes int) string {
		texts := make([]string, 0, len(sections))
		for _, s := range sections {
			if len(s.items) > 0 {
				texts = append(texts, s.text(min(items, len(s.items)), itemBytes))
			}
		}
		return strings.Join(texts, ". ")
	}
	for items := mostItems; items > 0; items-- {
		if whole := text(items, limit); len(whole) <= limit {
			return whole
		}
	}
	for itemBytes := limit; itemBytes > shortest; itemBytes -= shortest {
		if cut := text(1, itemBytes); len(cut) <= limit {
			return cut
		}
	}
	return printable.Line(text(1, shortest), limit)
}

// text shows the first items, each in at most itemBytes, and counts the rest.
func (s section) text(shown, itemBytes int) string {
	items := make([]string, 0, shown+1)
	for _, item := range s.items[:shown] {
		items = append(items, printable.Line(item, itemBytes))
	}
	if hidden := len(s.items) - shown; hidden > 0 {
		tail := more(hidden, s.plural)
		if s.short != nil {
			tail += ": " + strings.Join(unique(s.short[shown:]), ", ")
		}
		items = append(items, tail)
	}
	return s.lead + strings.Join(items, "; ")
}

// more stands for items that are only counted.
func more(n int, plural string) string {
	if n == 1 {
		plural = strings.TrimSuffix(plural, "s")
	}
	return strconv.Itoa(n) + " more " + plural + printable.Ellipsis
}
