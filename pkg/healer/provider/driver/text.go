package driver

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/internal/printable"
)

// The most bytes of a text and of a name that a driver wrote.
const (
	maxText = 160
	maxName = 63
)

// clean returns what a driver wrote as half a sentence on one line.
func clean(text string, limit int) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == utf8.RuneError || r == ' ' || !strconv.IsPrint(r) })
	text = strings.TrimRight(strings.Join(words, " "), ". ")
	if text == "" {
		return "no text"
	}
	return printable.Line(text, limit)
}
