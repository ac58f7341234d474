package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// atStaging is a call that names the staging path only, as the CSI-Addons controller makes it
// for a volume of several pods.
func atStaging(v *harness.Volume) *healerpb.NodeHealerRequest {
	req := v.Request()
	req.VolumePath = req.GetStagingTargetPath()
	return req
}

// TestEmptyTargetIsNeverHealthy loses a bind while an application that is in no container
// writes into the bare directory. No face says that the volume is healthy, and none changes
// anything; who names the path has it judged.
func TestEmptyTargetIsNeverHealthy(t *testing.T) {
	program := harness.BuildHealerctl(t)
	n := harness.NewNode(t, "--standalone", "--loop=observe", "--check-interval=10s")
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("ext4", "written to")
	call := func(want int, has string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, append(args, "--endpoint=unix://"+n.Socket())...).CombinedOutput()
		code := 0
		if exit := (&exec.ExitError{}); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want || !strings.Contains(string(out), has) {
			t.Errorf("healerctl %s: exit code %d, want %d and %q: %s", args, code, want, has, out)
		}
	}
	n.Expect("healthy", v.Request())
	listed := func(verdict string) {
		t.Helper()
		harness.Eventually(t, "it is listed as "+verdict, func() bool {
			out, err := exec.CommandContext(t.Context(), program, "list", "-o", "json", "--endpoint=unix://"+n.Socket()).Output()
			var volumes []struct{ Verdict string }
			return err == nil && json.Unmarshal(out, &volumes) == nil && len(volumes) == 1 && volumes[0].Verdict == verdict
		})
	}
	listed("healthy")
	call(0, "   1/1 ", "list")

	v.Unpublish()
	file := filepath.Join(v.MountPoint(), "written by the application")
	harness.Must(t, os.WriteFile(file, []byte("on the node's disk"), 0o600))
	lost := n.Table()
	listed("not judged")
	call(0, "   0/1 ", "list")
	call(0, "Unjudged", "list")
	for _, args := range [][]string{{"check", "written to"}, {"heal", "written to"}} {
		call(5, "not judged", args...)
	}
	n.Expect("not judged", atStaging(v), harness.PodUID, " is empty and nothing shows that it is wanted")
	if log := n.Log.String(); !strings.Contains(log, `verdict="not judged"`) {
		t.Errorf("the loop logged\n%s", log)
	}
	n.SameTable(lost)

	n.Expect("abnormal", v.Request(), "NotMounted")
	call(1, "1. see who wrote them", "check", "written to", "--path", v.MountPoint())
	n.SameTable(lost)
	call(1, "TargetNotEmpty", "heal", "written to", "--path", v.MountPoint())
	n.SameTable(lost)
	harness.Must(t, os.Remove(file))
	call(0, "healed", "heal", "written to", "--path", v.MountPoint())
	listed("healthy")
	call(0, "healthy", "check", "written to")
}
