package printable

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"postgres":               "postgres",
		"kworker/0:1":            "kworker/0?1",
		"a b\n\x00\x1b[31m\xff":  "a?b????31m?",
		"x), pod 1 (y":           "x???pod?1??y",
		"für":                    "f?r",
		strings.Repeat("y", 100): strings.Repeat("y", 40),
	} {
		if got := Name(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
