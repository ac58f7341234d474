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
	// failed has the items that are steps which failed: that is said of one that is only
	// counted, however little room there is.
	failed []bool
	// optional is true for what is left out where there is no room for all.
	optional bool
	// numbered is true where the items are to be done one after the other.
	numbered bool
}

// write returns the sentences: the first item of each, then by turns one more of each for
// which there is room in limit bytes, of the first sentence last; the rest is counted. It
// reports whether that fits.
func write(sections []section, limit int) (written string, fits bool) {
	sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.items) == 0 })
	shown := slices.Repeat([]int{1}, len(sections))
	text := func() string {
		texts := make([]string, 0, len(sections))
		for i, s := range sections {
			texts = append(texts, s.text(shown[i]))
		}
		return strings.Join(texts, ". ")
	}
	for more := true; more; {
		more = false
		for turn := range sections {
			i := (turn + 1) % len(sections)
			if shown[i] == len(sections[i].items) {
				continue
			}
			if shown[i]++; len(text()) > limit {
				shown[i]--
				continue
			}
			more = true
		}
	}
	written = text()
	return written, len(written) <= limit
}

// text shows the first items and counts the rest.
func (s section) text(shown int) string {
	items := make([]string, 0, shown+1)
	for i, item := range s.items[:shown] {
		if s.numbered && len(s.items) > 1 {
			item = strconv.Itoa(i+1) + ". " + item
		}
		items = append(items, item)
	}
	if hidden := len(s.items) - shown; hidden > 0 {
		tail := more(hidden, s.plural)
		switch {
		case s.short == nil && slices.Contains(s.failed[min(shown, len(s.failed)):], true):
			tail += ": some failed"
		case s.short != nil:
			tail += ": " + strings.Join(unique(strings.Split(strings.Join(s.short[shown:], ", "), ", ")), ", ")
		}
		items = append(items, tail)
	}
	return s.lead + strings.Join(items, "; ")
}

// more stands for items that are only counted.
func more(n int, plural string) string { return counted(n, "more "+plural) + printable.Ellipsis }

// counted returns "1 step", "2 steps".
func counted(n int, plural string) string {
	if n == 1 {
		plural = strings.TrimSuffix(plural, "s")
	}
	return strconv.Itoa(n) + " " + plural
}
