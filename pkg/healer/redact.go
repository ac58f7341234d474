package healer

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// redactFrom is the shortest secret that is looked for in texts: shorter ones
// occur in any sentence.
const redactFrom = 4

// Redact returns a text without the values, for the driver or the tool that puts one
// into its output.
func (s Secrets) Redact(text string) string {
	if len(s) == 0 {
		return text
	}
	// Longest first, or a secret within a longer one would leave its rest.
	values := slices.SortedFunc(maps.Values(s), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	for _, v := range values {
		if len(v) >= redactFrom {
			text = strings.ReplaceAll(text, v, redacted)
		}
	}
	return text
}

// Redacted returns an error without the volume's secrets. One of a program is without the
// values of volume_context, too: it may have been told them, or have found them.
func (v Volume) Redacted(err error) error {
	if err == nil {
		return nil
	}
	text := v.Secrets.Redact(err.Error())
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		text = v.Context.Redact(text)
	}
	if text == err.Error() {
		return err
	}
	return &redactedError{text, err}
}

// redactedError is an error with another text.
type redactedError struct {
	text string
	err  error
}

// Error implements error.
func (e *redactedError) Error() string { return e.text }

// Unwrap has the kind of the error compared.
func (e *redactedError) Unwrap() error { return e.err }

// QuoteName quotes a name of foreign origin if it could be taken for more than one
// word: a daemon names its filesystem freely, and names on a disk are not ours.
func QuoteName(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return name
	}
	return strconv.Quote(name)
}
