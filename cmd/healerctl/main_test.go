package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// fakeAdmin has one broken volume, which a heal repairs, and one with a hostile name.
type fakeAdmin struct {
	adminpb.UnimplementedAdminServer

	healed bool
}

const hostile = "evil\x1b]0;x\a\u009b2J\u202e\n"

func (*fakeAdmin) ListVolumes(_ *adminpb.ListVolumesRequest, s grpc.ServerStreamingServer[adminpb.Volume]) error {
	for _, v := range []*adminpb.Volume{
		{Driver: "a.example.com", VolumeId: "vol-1", Paths: []*adminpb.VolumePath{{Path: "/p"}, {Path: "/q"}, {Path: "/s", Staging: true}}},
		{Driver: "b.example.com", VolumeId: hostile, Omitted: 3},
	} {
		if err := s.Send(v); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeAdmin) CheckVolume(_ context.Context, r *adminpb.CheckVolumeRequest) (*adminpb.VolumeReport, error) {
	switch {
	case r.GetVolumeId() == "busy":
		return nil, status.Error(codes.Aborted, "busy\x1b[2J")
	case r.GetVolumeId() != "vol-1":
		return nil, status.Error(codes.NotFound, "no such volume on this node")
	case r.GetDriver() == "bad":
		return nil, status.Error(codes.InvalidArgument, "driver: bad")
	case f.healed:
		return &adminpb.VolumeReport{Verdict: "healthy", Message: "healthy: all is well."}, nil
	}
	return &adminpb.VolumeReport{Verdict: "abnormal", Message: "abnormal: NotMounted at /p.", Steps: []*adminpb.Step{
		{Step: "rebind", Cost: "rebind", MountPoint: "/p"}, {Step: "restage", Cost: "restage", MountPoint: "/s", Refused: "not enabled"},
	}}, nil
}

func (f *fakeAdmin) HealVolume(ctx context.Context, r *adminpb.HealVolumeRequest) (*adminpb.VolumeReport, error) {
	if r.GetDryRun() {
		return f.CheckVolume(ctx, &adminpb.CheckVolumeRequest{VolumeId: r.GetVolumeId()})
	}
	f.healed = true
	return &adminpb.VolumeReport{Verdict: "healed", Message: "healed: rebind at /p."}, nil
}

// serveFake returns a function that runs healerctl against a server.
func serveFake(t *testing.T) func(args ...string) (code int, stdout, stderr string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	adminpb.RegisterAdminServer(s, &fakeAdmin{})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append(args, "--endpoint=unix://"+socket), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
}

func TestRun(t *testing.T) {
	call := serveFake(t)
	const steps = "abnormal: NotMounted at /p.\n" +
		"STEP      COST      MOUNT-POINT   REFUSED\n" +
		"rebind    rebind    /p            -\n" +
		"restage   restage   /s            not enabled\n"
	for _, c := range []struct { // in this order: the heal repairs the volume
		args           string
		code           int
		stdout, stderr string
	}{
		{"check vol-1", exitAbnormal, steps, ""},
		{"heal --dry-run vol-1", exitAbnormal, steps, ""},
		{"check nope", exitNotFound, "", "healerctl: no such volume on this node\n"},
		{"check busy", exitNoAnswer, "", "healerctl: busy\\x1b[2J\n"},
		{"check vol-1 --driver bad", exitUsage, "", "healerctl: driver: bad\n"},
		{"check", exitUsage, "", "healerctl: accepts 1 arg(s), received 0\n"},
		{"list -o xml", exitUsage, "", "healerctl: --output: \"xml\" is none of table, json and yaml\n"},
		{"heal vol-1", 0, "healed: rebind at /p.\n", ""},
		{"check vol-1", 0, "healthy: all is well.\n", ""},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if code != c.code || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("%s: exit code %d, want %d\nstdout %q\n  want %q\nstderr %q\n  want %q", c.args, code, c.code, stdout, c.stdout, stderr, c.stderr)
		}
	}
}

func TestNoServer(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"list", "--endpoint=unix://" + filepath.Join(t.TempDir(), "none")}, &stdout, &stderr); code != exitNoAnswer {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

func TestListObeysNoTerminal(t *testing.T) {
	call := serveFake(t)
	for _, output := range []string{asTable, asJSON, asYAML} {
		code, stdout, stderr := call("list", "-o", output)
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s", output, code, stderr)
		}
		if strings.ContainsAny(stdout, "\x1b\a\u009b\u202e") {
			t.Errorf("%s: %q", output, stdout)
		}
		if output == asTable {
			if !strings.HasPrefix(stdout, "DRIVER          VOLUME-ID") || !strings.Contains(stdout, "a.example.com   vol-1") || strings.Count(stdout, "\n") != 3 {
				t.Errorf("%s", stdout)
			}
			continue
		}
		raw, err := yaml.YAMLToJSON([]byte(stdout)) // JSON is YAML
		if err != nil {
			t.Fatal(err)
		}
		var volumes []struct {
			VolumeID string `json:"volume_id"`
		}
		if err := json.Unmarshal(raw, &volumes); err != nil || len(volumes) != 2 || volumes[1].VolumeID != hostile {
			t.Errorf("%s: %v, %q", output, err, volumes)
		}
	}
}

// The page has the exit codes and all commands, as the program says them.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/healerctl.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), exitCodes) {
		t.Errorf("docs/healerctl.md has not:\n%s", exitCodes)
	}
	for _, c := range newRoot().Commands() {
		if line := "healerctl " + c.Use; !strings.Contains(string(page), line) {
			t.Errorf("docs/healerctl.md has not: %s", line)
		}
	}
}
