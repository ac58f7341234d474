package main

import (
	"strings"
	"testing"
)

// Completion offers what fits, and no files.
func TestCompletion(t *testing.T) {
	const noFiles = ":4\nCompletion ended with directive: ShellCompDirectiveNoFileComp\n"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", "NotM"}, "NotMounted\n"},
		{[]string{"explain", "reb"}, "rebind\n"},
		{[]string{"explain", "NotMounted", ""}, ""},
		{[]string{"list", "-o", ""}, "table\nwide\njson\nyaml\n"},
		{[]string{"check", "-o", ""}, "table\nwide\njson\nyaml\n"},
		{[]string{"check", ""}, "bucket\tCheck a bucket of S3 with the credentials of a mounted Secret\n"},
		{[]string{"heal", "vol-1", ""}, ""},
		{[]string{"watch", ""}, ""},
	} {
		code, stdout, stderr := throughPipes(t, append([]string{"__complete"}, c.args...)...)
		if code != 0 || stdout+stderr != c.want+noFiles {
			t.Errorf("%q: exit code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
	_, stdout, _ := throughPipes(t, "__complete", "explain", "Not")
	offered := strings.Fields(strings.TrimSuffix(stdout, ":4\n"))
	for _, name := range offered {
		if !strings.HasPrefix(name, "Not") {
			t.Errorf("%s is offered", name)
		}
	}
	if len(offered) < 2 {
		t.Errorf("%q", offered)
	}
}
