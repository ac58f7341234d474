package nodeserver

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// ellipsis marks where text was left out.
const ellipsis = "…"

// oneLine returns s as valid UTF-8 on one line, in at most limit bytes. What is not
// printable is escaped as in a Go string, what does not fit is cut between runes and
// marked. Backslashes stay single: the text must not mislead a reader, but need not be
// parsed again.
func oneLine(s string, limit int) string {
	if limit < len(ellipsis) {
		return ""
	}
	if len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, notPrintable) {
		return s // as nearly always
	}
	var b strings.Builder
	fits := 0 // bytes of b that the mark still fits behind
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[0])|0x100, 16)[1:])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		if b.Len() > limit {
			return b.String()[:fits] + ellipsis
		}
		if b.Len() <= limit-len(ellipsis) {
			fits = b.Len()
		}
		s = s[size:]
	}
	return b.String()
}

func notPrintable(r rune) bool { return (r < ' ' || r > '~') && !strconv.IsPrint(r) }

// pathText returns a plain path as it is, and another one quoted, so that no part of it
// can be taken for the sentence around it. A long one loses its middle.
func pathText(path string, limit int) string {
	shown := path
	if !utf8.ValidString(path) || strings.ContainsFunc(path, notPlain) {
		shown = strconv.Quote(path)
	}
	if len(shown) <= limit {
		return shown
	}
	half := max((limit-len(ellipsis))/2, 0)
	head, tail := shown[:half], shown[len(shown)-half:]
	for len(head) > 0 && !utf8.ValidString(head) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.ValidString(tail) {
		tail = tail[1:]
	}
	return head + ellipsis + tail
}

func notPlain(r rune) bool {
	if 'a' <= r && r <= 'z' || '-' <= r && r <= '9' {
		return false // as nearly always
	}
	return !strconv.IsPrint(r) || strings.ContainsRune(" \"'\\;,()", r)
}

// quoted returns the beginning of a caller's text for an error, quoted.
func quoted(s string) string {
	const limit = 128
	if len(s) <= limit {
		return strconv.Quote(s)
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + ellipsis
}

// enumerate returns "a", "a and b", "a, b and c".
func enumerate(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	last := len(items) - 1
	return strings.Join(items[:last], ", ") + " and " + items[last]
}

// unique removes repetitions and keeps the order.
func unique(items []string) []string {
	seen := make(map[string]bool, len(items))
	var out []string
	for _, item := range items {
		if !seen[item] {
			seen[item] = true
			out = append(out, item)
		}
	}
	return out
}
