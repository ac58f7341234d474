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

// write returns the sentences in at most limit bytes, as far as each can be cut. The
// first may take half of that, the others share what it leaves, and it takes what
// they leave.
func write(sections []section, limit int) string {
	const stop = ". "
	sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.items) == 0 })
	if len(sections) == 0 {
		return ""
	}
	limit -= len(stop) * (len(sections) - 1)
	first, texts := sections[0].text(len(sections[0].items)), make([]string, len(sections))
	left := limit - min(len(first), limit/2)
	// From short to long: what one does not need is for those that need more.
	order := make([]int, 0, len(sections)-1)
	for i, s := range sections[1:] {
		texts[1+i] = s.text(len(s.items))
		order = append(order, 1+i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(texts[a]) - len(texts[b]) })
	used := 0
	for n, i := range order {
		texts[i] = sections[i].fit(texts[i], left/(len(order)-n))
		left -= len(texts[i])
		used += len(texts[i])
	}
	texts[0] = sections[0].fit(first, limit-used)
	return strings.Join(texts, stop)
}

// fit returns the whole text if it is not longer than limit, else as many items as
// fit, in full, and counts the rest. Where not even one fits, it is cut.
func (s section) fit(whole string, limit int) string {
	if len(whole) <= limit {
		return whole
	}
	best := ""
	for n := 1; n < len(s.items); n++ {
		text := s.text(n)
		if len(text) > limit {
			break
		}
		best = text
	}
	if best == "" {
		tail := s.tail(1)
		best = printable.Line(s.lead+s.items[0], max(limit-len(tail), 0)) + tail
	}
	return printable.Line(best, limit)
}

// text shows n items and counts the rest.
func (s section) text(n int) string {
	return s.lead + strings.Join(s.items[:n], "; ") + s.tail(n)
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
