package nodeserver

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/internal/printable"
)

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
	half := max((limit-len(printable.Ellipsis))/2, 0)
	// A rune that is cut in two goes.
	return strings.ToValidUTF8(shown[:half], "") + printable.Ellipsis + strings.ToValidUTF8(shown[len(shown)-half:], "")
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
	return strconv.Quote(strings.ToValidUTF8(s[:limit], "")) + printable.Ellipsis
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
