package main

import (
	"strconv"
	"testing"
)

// obeysNoTerminal fails if a text has a byte or rune that is there to be obeyed.
func obeysNoTerminal(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !strconv.IsPrint(r) {
			t.Errorf("%q in %q", r, text)
			return
		}
	}
}
