package main

import (
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
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
	endpoint := (&fakeAdmin{volumes: []*adminpb.Volume{
		{VolumeId: "vol-1", Pv: "pvc-1", Claim: "shop/data", Pods: []string{"shop/web-0", "shop/web-1"}},
		{VolumeId: "vol-$(reboot)", Pv: "pvc-2", Pods: []string{"shop/web-0"}},
		{VolumeId: hostile},
	}}).listen(t)
	for begun, want := range map[string]string{"": "bucket\tCheck a bucket of S3 with the credentials of a mounted Secret\nvol-1\npvc-1\nshop/data\nshop/web-0\nshop/web-1\npvc-2\n", "vol": "vol-1\n"} {
		for tries := 1; ; tries++ {
			began := time.Now()
			code, stdout, stderr := throughPipes(t, "__complete", endpoint, "check", begun)
			if code == 0 && stdout+stderr == want+noFiles {
				break
			}
			if tries == 20 || time.Since(began) < completionTimeout { // which a busy machine may take
				t.Fatalf("%q: exit code %d, %q, %q", begun, code, stdout, stderr)
			}
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
