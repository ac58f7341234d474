package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestDoctorDoesNotHang has a daemon stop that serves what is above the state directory.
func TestDoctorDoesNotHang(t *testing.T) {
	program := harness.BuildHealerctl(t)
	n := harness.NewNode(t)
	v, disk := n.NewFUSEDisk("hangs", harness.FUSEConfig{})
	disk.Freeze()
	t.Cleanup(disk.Thaw)
	out, err := exec.CommandContext(t.Context(), program, "doctor", "--kubelet-root="+n.Kubelet, "--state-dir="+v.Staging+"/no-such-name", "--endpoint=unix:///none").CombinedOutput()
	if !strings.Contains(string(out), "missing   state ") || !strings.Contains(string(out), "time ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHealerctlDoctor has the shipped program look at nodes that lack one thing each, and at
// one that lacks nothing. Each is a mount and pid namespace of its own.
func TestHealerctlDoctor(t *testing.T) {
	harness.NeedsRoot(t)
	program := harness.BuildHealerctl(t)
	dir := t.TempDir()
	kubelet, state := dir+"/kubelet", dir+"/state"
	harness.Mkdir(t, kubelet)
	harness.Mkdir(t, state)
	const whole = "mount --make-rshared /"
	for name, c := range map[string]struct {
		// setup runs first, with is what the program is run by, and env is in everybody's environment.
		setup, with, env string
		missing          map[string]string
	}{
		"nothing":     {setup: whole},
		"propagation": {setup: "mount --make-rprivate /", missing: map[string]string{"propagation": "mount --make-rshared /"}},
		"a shared mount": {
			setup: "mount --make-rprivate /; mount --bind " + kubelet + " " + kubelet + "; mount --make-shared " + kubelet,
		},
		"root":         {setup: whole, with: "setpriv --reuid=65534 --clear-groups", missing: map[string]string{"rights": "run it as root", "kubelet": "permission denied", "state": "permission denied"}},
		"a capability": {setup: whole, with: "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin", missing: map[string]string{"rights": "CAP_SYS_ADMIN"}},
		"its own user namespace": {
			setup: whole, with: "unshare --user --map-root-user",
			missing: map[string]string{"rights": "hostUsers"},
		},
		"hostPID":                          {setup: whole, env: "KUBERNETES_SERVICE_HOST=10.96.0.1", missing: map[string]string{"rights": "hostPID: true"}},
		"nothing, on a node that is a pod": {setup: whole, env: "KUBERNETES_SERVICE_HOST=10.96.0.1", with: "env -u KUBERNETES_SERVICE_HOST"},
		"nothing, in a container on a node like that": {setup: whole, env: "KUBERNETES_SERVICE_HOST=10.96.0.1", with: "unshare --mount --propagation=unchanged"},
		"kubelet":    {setup: whole + "; mount -t tmpfs none " + dir + "; mkdir " + state, missing: map[string]string{"kubelet": "no such file"}},
		"a disk":     {setup: whole + "; mount -t tmpfs -o ro none " + state, missing: map[string]string{"state": "read-only file system"}},
		"disk space": {setup: whole + "; mount -t tmpfs -o size=8k none " + state + "; head -c 8k /dev/zero >" + state + "/full", missing: map[string]string{"state": "no space"}},
		"inodes":     {setup: whole + "; mount -t tmpfs -o nr_inodes=2 none " + state + "; touch " + state + "/last", missing: map[string]string{"state": "no inodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			// The program is not the first process of its pid namespace, as on a node.
			script := "set -e; " + c.setup + "; set +e; " + c.with + " " + program + " doctor -o json --endpoint=unix:///none --kubelet-root=" + kubelet + " --state-dir=" + state + "; exit $?"
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script)
			cmd.Env = append(os.Environ(), c.env)
			out, err := cmd.Output()
			code := 0
			if exit := (&exec.ExitError{}); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			var all []struct{ Name, State, Text string }
			harness.Must(t, json.Unmarshal(out, &all))
			for _, e := range all {
				if says, is := c.missing[e.Name]; (e.State == "missing") != is || !strings.Contains(e.Text, says) {
					t.Errorf("%s: %s: %s, want missing: %t, %s", e.Name, e.State, e.Text, is, says)
				}
			}
			want := 0
			if len(c.missing) > 0 {
				want = 1
			}
			if code != want || len(all) < 5 {
				t.Errorf("exit code %d, want %d: %s", code, want, out)
			}
		})
	}
}
