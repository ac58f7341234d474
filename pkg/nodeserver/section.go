package nodeserver

import (
	"slices"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/internal/printable"
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

// write returns the sentences in at most limit bytes: the first item of each, then by turns
// one more of each for which there is room; the rest is counted. Where the first ones are
// too long, all are cut alike.
func write(sections []section, limit int) string {
	sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.items) == 0 })
	shown := slices.Repeat([]int{1}, len(sections))
	text := func(itemBytes int) string {
		texts := make([]string, 0, len(sections))
		for i, s := range sections {
			texts = append(texts, s.text(shown[i], itemBytes))
		}
		return strings.Join(texts, ". ")
	}
	for more := true; more; {
		more = false
		for i, s := range sections {
			if shown[i] == len(s.items) {
				continue
			}
			if shown[i]++; len(text(limit)) > limit {
				shown[i]--
				continue
			}
			more = true
		}
	}
	const shortest = 32
	for itemBytes := limit; itemBytes > shortest; itemBytes -= shortest {
		if cut := text(itemBytes); len(cut) <= limit {
			return cut
		}
	}
	return printable.Line(text(shortest), limit)
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
