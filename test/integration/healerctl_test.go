package integration

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

func buildHealerctl(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "healerctl")
	harness.Run(t, "env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-tags=grpcnotrace", "-o", program, "github.com/csi-addons/node-healer/cmd/healerctl")
	return program
}

// TestHealerctl loses a bind that a container uses, and has a person find, check and
// heal the volume by its ID.
func TestHealerctl(t *testing.T) {
	program := buildHealerctl(t)
	n := harness.NewNode(t)
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("tmpfs", "by hand")
	n.NewContainer(harness.PodUID, v.MountPoint())
	call := func(want int, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, append(args, "--endpoint=unix://"+n.Socket())...).CombinedOutput()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("healerctl %s: exit code %d, want %d: %s", args, code, want, out)
		}
		return string(out)
	}
	n.Expect("healthy", v.Request())
	before := n.Table()
	call(0, "check", "by hand")
	if out := call(3, "check", "another"); !strings.Contains(out, "healerctl list") {
		t.Error(out)
	}
	for _, name := range []string{v.PV, harness.PodUID, v.MountPoint(), v.Staging} {
		if out := call(0, "check", name); !strings.HasPrefix(out, "healthy: by hand\n") || !strings.Contains(out, " "+v.PV+"\n") || !strings.Contains(out, " "+harness.PodUID+"\n") {
			t.Errorf("by %s: %s", name, out)
		}
	}
	var volumes []struct {
		VolumeID string `json:"volume_id"`
	}
	if err := json.NewDecoder(strings.NewReader(call(0, "list", "-o", "json"))).Decode(&volumes); err != nil || len(volumes) != 1 || volumes[0].VolumeID != "by hand" {
		t.Errorf("listed %v, %v", volumes, err)
	}

	if out := call(0, "list"); !strings.Contains(out, "healthy, ") || !strings.Contains(out, " ago\n") || !strings.Contains(out, "loop is off") {
		t.Errorf("without a loop the last answer is not listed: %s", out)
	}
	out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--clear-groups", program, "list", "--endpoint=unix://"+n.Socket()).CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "healerctl: only root may connect to "+n.Socket()) {
		t.Errorf("another user: %v, %s", err, out)
	}

	for _, line := range []string{"version  ", "mode        heal\n", "loop        off", "policy      none\n", "api         none: only a running container", "providers   ", "limits      ", "queue       0 volumes"} {
		if out := call(0, "status"); !strings.Contains(out, line) {
			t.Errorf("%q is not in %s", line, out)
		}
	}

	v.Unpublish()
	lost := n.Table()
	for _, args := range [][]string{{"check", "by hand"}, {"heal", "--dry-run", "by hand"}} {
		if out := call(1, args...); !strings.Contains(out, "found ") || !strings.Contains(out, ": NotMounted") || !strings.Contains(out, "would try   rebind of the target\n") {
			t.Errorf("healerctl %s: %s", args, out)
		}
		n.SameTable(lost)
	}
	if out := call(0, "heal", "by hand"); !strings.Contains(out, "healed") {
		t.Error(out)
	}
	n.SameTable(before)
	if out := call(0, "audit", "--volume=by hand"); !strings.Contains(out, "rebind") || !strings.Contains(out, "uid 0") || !strings.Contains(out, "done") {
		t.Errorf("the audit log is %s", out)
	}
	call(0, "explain", "NotMounted")
}
