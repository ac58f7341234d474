package healer

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// QuoteName quotes a name of foreign origin if it could be taken for more than one
// word: a daemon names its filesystem freely, and names on a disk are not ours.
func QuoteName(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return name
	}
	return strconv.Quote(name)
}
