package integration

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// byHand is a volume with a running container, and healerctl at its node.
type byHand struct {
	*harness.Volume
	t       *testing.T
	node    *harness.Node
	program string
}

func newByHand(t *testing.T) byHand {
	t.Helper()
	h := byHand{t: t, node: harness.NewNode(t), program: harness.BuildHealerctl(t)}
	h.node.AnyDriver = true
	h.node.Start()
	h.Volume = h.node.NewVolume("tmpfs", "by hand")
	h.node.NewContainer(harness.PodUID, h.MountPoint())
	h.node.Expect("healthy", h.Request())
	return h
}

func (h byHand) call(want int, args ...string) string {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), h.program, append(args, "--endpoint=unix://"+h.node.Socket())...).CombinedOutput()
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		h.t.Fatal(err)
	}
	if code != want {
		h.t.Errorf("healerctl %s: exit code %d, want %d: %s", args, code, want, out)
	}
	return string(out)
}

// TestHealerctl tells of a healthy volume by each of its names, of the server, and nothing to
// another user.
func TestHealerctl(t *testing.T) {
	h := newByHand(t)
	h.call(0, "check", "by hand")
	if out := h.call(3, "check", "another"); !strings.Contains(out, "healerctl list") {
		t.Error(out)
	}
	for _, name := range []string{h.PV, harness.PodUID, h.MountPoint(), h.Staging} {
		if out := h.call(0, "check", name); !strings.HasPrefix(out, "healthy: by hand\n") || !strings.Contains(out, " "+h.PV+"\n") || !strings.Contains(out, " "+harness.PodUID+"\n") {
			t.Errorf("by %s: %s", name, out)
		}
	}
	var volumes []struct {
		VolumeID string `json:"volume_id"`
	}
	if err := json.NewDecoder(strings.NewReader(h.call(0, "list", "-o", "json"))).Decode(&volumes); err != nil || len(volumes) != 1 || volumes[0].VolumeID != "by hand" {
		t.Errorf("listed %v, %v", volumes, err)
	}
	if out := h.call(0, "list"); !strings.Contains(out, "healthy, ") || !strings.Contains(out, " ago\n") || !strings.Contains(out, "loop is off") {
		t.Errorf("without a loop the last answer is not listed: %s", out)
	}
	out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--clear-groups", h.program, "list", "--endpoint=unix://"+h.node.Socket()).CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "healerctl: only root may connect to "+h.node.Socket()) {
		t.Errorf("another user: %v, %s", err, out)
	}
	for _, line := range []string{"version  ", "mode        heal\n", "loop        off", "policy      none\n", "api         none: only a running container", "providers   ", "limits      ", "queue       0 volumes"} {
		if out := h.call(0, "status"); !strings.Contains(out, line) {
			t.Errorf("%q is not in %s", line, out)
		}
	}
	h.call(0, "explain", "NotMounted")
}

func TestHealerctlHeals(t *testing.T) {
	h := newByHand(t)
	before := h.node.Table()
	h.Unpublish()
	lost := h.node.Table()
	for _, args := range [][]string{{"check", "by hand"}, {"heal", "--dry-run", "by hand"}} {
		if out := h.call(1, args...); !strings.Contains(out, "found ") || !strings.Contains(out, ": NotMounted") || !strings.Contains(out, "would try   rebind of the target\n") {
			t.Errorf("healerctl %s: %s", args, out)
		}
		h.node.SameTable(lost)
	}
	if out := h.call(0, "heal", "by hand"); !strings.Contains(out, "healed") {
		t.Error(out)
	}
	h.node.SameTable(before)
	if out := h.call(0, "audit", "--volume=by hand"); !strings.Contains(out, "rebind") || !strings.Contains(out, "uid 0") || !strings.Contains(out, "done") {
		t.Errorf("the audit log is %s", out)
	}
}
