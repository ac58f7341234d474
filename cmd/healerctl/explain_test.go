package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/docs"
	"github.com/csi-addons/node-healer/pkg/bucket"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		name string
		code int
		says []string
	}{
		{"NotMounted", 0, []string{"NotMounted\n", "  status: Inaccessible, acute\n", "  what is done: rebind\n", "republish", "/docs/conditions.md#NotMounted\n"}},
		{"disconnected", 0, []string{"Disconnected (*)\n", "ENOTCONN"}},
		{"VolumeHealRefused", 0, []string{"VolumeHealRefused\n  where: event\n"}},
		{"RestageHadNoEffect", 0, []string{"mounted nothing new"}},
		{"PodNotRunning", 0, []string{"No pod runs yet"}},
		{"rebind", 0, []string{"rebind\n", "/docs/conditions.md#rebind\n"}},
		{"Tired", exitUsage, []string{"Tired is no condition, step or event; they are: ", "NotMounted"}},
		{"\x1b[31m", exitUsage, []string{"31m is no condition"}},
	} {
		var out, errors bytes.Buffer
		code := run(t.Context(), []string{"healerctl", "explain", tc.name}, &out, &errors)
		text := out.String() + errors.String()
		if code != tc.code {
			t.Errorf("%s: exit %d", tc.name, code)
		}
		for _, says := range tc.says {
			if !strings.Contains(text, says) {
				t.Errorf("%s: no %q in %s", tc.name, says, text)
			}
		}
		if strings.ContainsAny(text, "`\x1b") || strings.Contains(text, "](") {
			t.Errorf("%s: %s", tc.name, text)
		}
	}
}

// Every reason is explained, also those that are no condition: list shows them, too.
func TestEveryReasonIsExplained(t *testing.T) {
	known := names(entries(docs.Conditions))
	others := []healer.Reason{
		healer.ProviderFailed, healer.CheckUnanswered, healer.Reason(healer.PermissionMissing),
		healer.Reason(healer.TerminalError),
	}
	for _, r := range bucket.Rows() {
		others = append(others, healer.Reason(r.Condition.Reason))
	}
	others = slices.DeleteFunc(others, func(r healer.Reason) bool { return r == "" })
	for _, r := range append(others, healer.Reasons()...) {
		if !slices.Contains(known, string(r)) {
			t.Errorf("%s", r)
		}
	}
}
