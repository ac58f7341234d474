package driver

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// The most bytes of a text and of a name that a driver wrote.
const (
	maxText = 160
	maxName = 63
)

// clean returns what a driver wrote as half a sentence on one line, without the values
// of secrets and volume_context: drivers quote what they were called with.
func clean(v healer.Volume, text string, limit int) string {
	redact := func(text string) string { return v.Context.Redact(v.Secrets.Redact(text)) }
	// Again afterwards: one value may have been on two lines.
	text = redact(strings.Join(strings.FieldsFunc(redact(text), notText), " "))
	text = strings.TrimRight(text, ". ")
	if text == "" {
		return "no text"
	}
	return printable.Line(text, limit)
}

func notText(r rune) bool { return r == utf8.RuneError || r == ' ' || !strconv.IsPrint(r) }
