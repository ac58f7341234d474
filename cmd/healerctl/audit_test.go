package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// No line of the log keeps another one from being shown, whatever it holds.
func TestAuditShowsEveryLine(t *testing.T) {
	const head = `{"version":1,"time":"2026-01-02T03:04:05Z","when":"before","step":"rebind","volumeID":"`
	ids := []string{"vol-1", "del\x7f", "tag\U000e0001", strings.Repeat("\x01", 900), hostile}
	var lines []string
	for _, id := range ids[:3] { // DEL and tags need no escape in JSON
		lines = append(lines, head+id+`"}`)
	}
	lines = append(lines, head+strings.Repeat(`\u0001`, 900)+`"}`, head+`evil\u001b]0;x\u0007`+"\u009b2J\u202e"+`\n"}`)
	const torn = head + "torn\x7f\x1b"
	call := (&fakeAdmin{audit: append(lines, torn)}).serve(t)

	code, stdout, stderr := call("audit")
	if rows := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n"); code != 0 || stderr != "" || len(rows) != 7 {
		t.Errorf("exit code %d, %s\n%s", code, stderr, stdout)
	} else {
		for i, want := range []string{"TIME", "   vol-1 ", `   del\x7f `, `   tag\U000e0001 `, `   \x01\x01`, `   evil\x1b]0;x\a\u009b2J\u202e\n `, `unreadable: {"version":1,`} {
			if !strings.Contains(rows[i], want) {
				t.Errorf("no %q in %s", want, rows[i])
			}
		}
		if !strings.HasSuffix(rows[6], `torn\x7f\x1b`) {
			t.Error(rows[6])
		}
	}
	obeysNoTerminal(t, stdout)

	for _, output := range []string{asJSON, asYAML} {
		code, stdout, stderr := call("audit", "-o", output)
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit code %d, %s", output, code, stderr)
		}
		obeysNoTerminal(t, stdout)
		parse := json.Unmarshal
		if output == asYAML {
			parse = func(text []byte, into any) error { return yaml.Unmarshal(text, into) }
		}
		var shown []any
		if err := parse([]byte(stdout), &shown); err != nil || len(shown) != 6 {
			t.Fatalf("%s: %v\n%s", output, err, stdout)
		}
		var read []string
		for _, line := range shown[:5] {
			entry, _ := line.(map[string]any)
			id, _ := entry["volumeID"].(string)
			read = append(read, id)
		}
		if text, _ := shown[5].(string); !slices.Equal(read, ids) || !strings.HasSuffix(text, `torn\x7f\x1b`) {
			t.Errorf("%s: %q, %q", output, read, text)
		}
	}
}

// Without anything hostile YAML is YAML.
func TestAuditYAML(t *testing.T) {
	const want = `- caller: loop
  mountPoint: /p
  step: rebind
  time: "2026-01-02T03:04:05Z"
  version: 1
  volumeID: vol-1
  when: before
- caller: loop
  mountPoint: /p
  outcome: done
  step: rebind
  time: "2026-01-02T03:04:06Z"
  version: 1
  volumeID: vol-1
  when: after
`
	if code, stdout, stderr := (&fakeAdmin{}).serve(t)("audit", "-o", "yaml"); code != 0 || stdout != want || stderr != "" {
		t.Errorf("exit code %d, %s\n%s", code, stderr, stdout)
	}
}
