// Package printable makes text that may be foreign (a caller's, the API's, a
// driver's) fit for a message or a log line. It knows nothing of what the text says.
package printable

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Ellipsis marks where text was left out.
const Ellipsis = "…"

// Line returns s as valid UTF-8 on one line, in at most limit bytes. What is not
// printable is escaped as in a Go string, what does not fit is cut between runes and
// marked. Backslashes stay single: the text must not mislead a reader, but need not be
// parsed again.
func Line(s string, limit int) string {
	if limit < len(Ellipsis) {
		return ""
	}
	if len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, notPrintable) {
		return s // as nearly always
	}
	var b strings.Builder
	b.Grow(min(limit, len(s)) + utf8.UTFMax)
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
			return b.String()[:fits] + Ellipsis
		}
		if b.Len() <= limit-len(Ellipsis) {
			fits = b.Len()
		}
		s = s[size:]
	}
	return b.String()
}

func notPrintable(r rune) bool { return (r < ' ' || r > '~') && !strconv.IsPrint(r) }

// Name returns a name that a user chose in at most 40 bytes, without control characters
// and without what could pass for a part of the sentence around it.
func Name(name string) string {
	const limit = 40
	clean := strings.Map(func(c rune) rune {
		if c > ' ' && c < 0x7f && !strings.ContainsRune(`()[]{}"'`+"`,;:", c) {
			return c
		}
		return '?'
	}, name)
	return clean[:min(len(clean), limit)]
}
