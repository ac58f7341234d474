package healer

import (
	"errors"
	"fmt"
	"testing"
)

func TestRedact(t *testing.T) {
	secrets := Secrets{"user": "admin", "password": "admin-hunter2", "pin": "123", "empty": ""}
	for text, want := range map[string]string{
		"":                            "",
		"no secret here":              "no secret here",
		"mount -o pass=admin-hunter2": "mount -o pass=[redacted]",
		"admin, then admin-hunter2":   "[redacted], then [redacted]",
		"it took 123 ms":              "it took 123 ms", // too short to be looked for
	} {
		if got := secrets.Redact(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := Secrets(nil).Redact("text"); got != "text" {
		t.Errorf("without secrets: %q", got)
	}
}

// What a program writes may have values of volume_context in it; our own errors name
// paths and filesystem types, which are often such values.
func TestRedacted(t *testing.T) {
	v := Volume{Secrets: Secrets{"key": "hunter22"}, Context: Secrets{"pool": "blue-pool"}}
	exit := &ExitError{Program: "/p", Code: 3, Refused: true, Text: "blue-pool: hunter22"}
	err := v.Redacted(fmt.Errorf("reconnect: %w", exit))
	if err.Error() != "reconnect: /p refused: [redacted]: [redacted]" || !errors.Is(err, ErrRefused) {
		t.Errorf("of a program: %v", err)
	}
	if err := v.Redacted(errors.New("blue-pool hunter22")); err.Error() != "blue-pool [redacted]" {
		t.Errorf("of our own: %v", err)
	}
	if err := v.Redacted(nil); err != nil {
		t.Errorf("none: %v", err)
	}
}
