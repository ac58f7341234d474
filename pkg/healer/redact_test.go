package healer

import "testing"

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
