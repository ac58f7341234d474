package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// fakeAdmin has one broken volume, which a heal repairs, and one with a hostile name.
type fakeAdmin struct {
	adminpb.UnimplementedAdminServer

	// volumes and audit, if set, are listed instead.
	volumes []*adminpb.Volume
	audit   []string
	// unlisted is why some volumes may be missing; empty: none are.
	unlisted string
	// loopOff is whether the node checks nothing by itself.
	loopOff bool
	// takes is how long a check or heal takes.
	takes  time.Duration
	healed atomic.Bool
}

const hostile = "evil\x1b]0;x\a\u009b2J\u202e\n"

func (f *fakeAdmin) ListVolumes(_ *adminpb.ListVolumesRequest, s grpc.ServerStreamingServer[adminpb.Volume]) error {
	if err := waitedFor(s.Context()); err != nil {
		return err
	}
	volumes := f.volumes
	if volumes == nil {
		volumes = []*adminpb.Volume{
			{Driver: "a.example.com", VolumeId: "vol-1", Paths: []*adminpb.VolumePath{{Path: "/p"}, {Path: "/q"}, {Path: "/s", Staging: true}}},
			{Driver: "b.example.com", VolumeId: hostile, Omitted: 3},
		}
	}
	if f.unlisted != "" {
		s.SetTrailer(metadata.Pairs(adminpb.TrailerUnlisted, f.unlisted))
	}
	if f.loopOff {
		s.SetTrailer(metadata.Pairs(adminpb.TrailerLoopOff, "off"))
	}
	for _, v := range volumes {
		if err := s.Send(v); err != nil {
			return err
		}
	}
	return nil
}

// waitedFor fails a call that would wait for a server that hangs.
func waitedFor(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		return status.Error(codes.Internal, "a server that hangs would be waited for")
	}
	return nil
}

func (*fakeAdmin) GetStatus(ctx context.Context, _ *adminpb.GetStatusRequest) (*adminpb.ServerStatus, error) {
	if err := waitedFor(ctx); err != nil {
		return nil, err
	}
	return &adminpb.ServerStatus{Lines: []*adminpb.StatusLine{{Name: "version", Value: "v1"}, {Name: "api", Value: "does not answer: no\x1b[2J"}}}, nil
}

func (*fakeAdmin) Explain(context.Context, *adminpb.ExplainRequest) (*adminpb.ExplainResponse, error) {
	return &adminpb.ExplainResponse{Conditions: []*adminpb.Condition{
		{Reason: "Vendors", Status: hostile, Message: hostile, Advice: hostile}, {Reason: hostile},
	}}, nil
}

func (f *fakeAdmin) ReadAudit(r *adminpb.ReadAuditRequest, s grpc.ServerStreamingServer[adminpb.AuditLine]) error {
	if r.GetLimit() > 1000 {
		return status.Error(codes.InvalidArgument, "limit: must be between 1 and 1000")
	}
	if err := waitedFor(s.Context()); err != nil {
		return err
	}
	lines := f.audit
	if lines == nil {
		lines = []string{
			`{"version":1,"time":"2026-01-02T03:04:05Z","when":"before","volumeID":"vol-1","step":"rebind","mountPoint":"/p","caller":"loop"}`,
			`{"version":1,"time":"2026-01-02T03:04:06Z","when":"after","volumeID":"vol-1","step":"rebind","mountPoint":"/p","caller":"loop","outcome":"done"}`,
		}
	}
	for _, line := range lines {
		if err := s.Send(&adminpb.AuditLine{Json: line}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeAdmin) CheckVolume(ctx context.Context, r *adminpb.CheckVolumeRequest) (*adminpb.VolumeReport, error) {
	f.wait(ctx)
	switch {
	case r.GetVolumeId() == "busy":
		return nil, status.Error(codes.Aborted, "busy\x1b[2J")
	case r.GetVolumeId() == "unjudged":
		return &adminpb.VolumeReport{VolumeId: "unjudged", Verdict: "not judged", Notes: []string{"target /p is empty"}}, nil
	case r.GetVolumeId() != "vol-1":
		return nil, status.Error(codes.NotFound, "no such volume on this node")
	case r.GetDriver() == "bad":
		return nil, status.Error(codes.InvalidArgument, "driver: bad")
	case f.healed.Load():
		return &adminpb.VolumeReport{
			VolumeId: r.GetVolumeId(), Driver: "a.example.com", Verdict: "healthy", Message: "healthy: all is well.", Notes: []string{"the target (ext4, rw) answered"},
		}, nil
	}
	return &adminpb.VolumeReport{
		VolumeId: r.GetVolumeId(), Driver: "a.example.com", Pv: "pvc-1", Claim: "shop/data", Pods: []string{"shop/web-0"},
		Verdict: "abnormal", Message: "abnormal: NotMounted at /p.",
		Conditions: []*adminpb.Condition{
			{Reason: "NotMounted", Status: "Inaccessible", Acute: true, MountPoint: "/p", Place: "the target", Message: "nothing is mounted\x1b[2J there"},
			{Reason: "ProviderFailed", Status: "Unknown", Place: "provider fuse", Message: "no answer"},
		},
		Steps: []*adminpb.Step{
			{Step: "rebind", Cost: "rebind", MountPoint: "/p", Place: "the target"},
			{Step: "restage", Cost: "restage", MountPoint: "/s", Place: "the staging mount point", Refused: "not enabled"},
		},
		Advice: []string{"copy the files", "delete the pod"}, Notes: []string{"Held by 2 mounts"}, LoopError: "the driver says no", Omitted: 3,
	}, nil
}

func (f *fakeAdmin) HealVolume(ctx context.Context, r *adminpb.HealVolumeRequest) (*adminpb.VolumeReport, error) {
	if r.GetDryRun() {
		return f.CheckVolume(ctx, &adminpb.CheckVolumeRequest{VolumeId: r.GetVolumeId()})
	}
	f.wait(ctx)
	f.healed.Store(true)
	return &adminpb.VolumeReport{
		VolumeId: r.GetVolumeId(), Driver: "a.example.com", Verdict: "healed", Message: "healed: rebind at /p.",
		Before: []*adminpb.Condition{{Reason: "NotMounted", Status: "Inaccessible", Place: "the target"}},
		Outcomes: []*adminpb.Outcome{
			{Step: "rebind", MountPoint: "/p", Place: "the target", Error: "move_mount: EPERM\x1b[2J", Tier: "terminal", ErrorType: "permission"},
			{Step: "replace", MountPoint: "/p", Place: "the target", Note: "read-only"},
		},
		Notes: []string{"the target (ext4, ro) answered"},
	}, nil
}

// wait returns when the call has taken its time, or its caller has left.
func (f *fakeAdmin) wait(ctx context.Context) {
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
	}
}

// listen serves on a socket of its own until the test has ended, and returns the flag that
// names it.
func (f *fakeAdmin) listen(t *testing.T) (endpoint string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "100%?#s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	adminpb.RegisterAdminServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "--endpoint=unix://" + socket
}

// serve returns a function that runs healerctl against a server.
func (f *fakeAdmin) serve(t *testing.T) func(args ...string) (code int, stdout, stderr string) {
	t.Helper()
	endpoint := f.listen(t)
	return func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append(append([]string{"healerctl"}, args...), endpoint), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
}

func TestAudit(t *testing.T) {
	call := (&fakeAdmin{}).serve(t)
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{args: "audit", stdout: "TIME                   VOLUME-ID   STEP     MOUNT-POINT   CALLER   OUTCOME\n" +
			"2026-01-02T03:04:05Z   vol-1       rebind   /p            loop     begins\n" +
			"2026-01-02T03:04:06Z   vol-1       rebind   /p            loop     done\n"},
		{args: "audit -n 1001", code: exitUsage, stderr: "healerctl: limit: must be between 1 and 1000\n"},
	} {
		if code, stdout, stderr := call(strings.Fields(c.args)...); code != c.code || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("%s: exit %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
}

// watch says each state once, and ends when it is interrupted.
func TestChangesAreSaidOnce(t *testing.T) {
	var out bytes.Buffer
	said := map[string]string{}
	v := &adminpb.Volume{Driver: "d", VolumeId: hostile}
	for _, verdict := range []string{"", "", "healthy", "healthy", "abnormal"} {
		v.Verdict = verdict
		if v.Reasons = nil; verdict == "abnormal" {
			v.Reasons, v.Left = []string{"NotMounted", "IOError"}, "Reason: nothing is changed"
		}
		if err := printChanges(&out, listing{volumes: []*adminpb.Volume{v}}, said); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "not checked yet") || !strings.HasSuffix(lines[1], "healthy") ||
		!strings.HasSuffix(lines[2], "abnormal: NotMounted, IOError (left alone: Reason: nothing is changed)") || strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q", lines)
	}
}

func TestRun(t *testing.T) {
	call := (&fakeAdmin{}).serve(t)
	const sick = "abnormal: vol-1\n" +
		"  driver       a.example.com\n" +
		"  pv           pvc-1\n" +
		"  claim        shop/data\n" +
		"  pods         shop/web-0\n" +
		"  found        the target: NotMounted (nothing is mounted\\x1b[2J there)\n" +
		"               provider fuse: ProviderFailed (no answer)\n" +
		"  would try    rebind of the target\n" +
		"  refused      restage of the staging mount point (not enabled)\n" +
		"  to do        1. copy the files\n" +
		"               2. delete the pod\n" +
		"  note         Held by 2 mounts\n" +
		"  loop         its last error: the driver says no\n" +
		"  not listed   3 more lines\n"
	wide := strings.NewReplacer("the target:", "the target /p:", " there)", " there), Inaccessible", "(no answer)", "(no answer), Unknown",
		"of the target", "of the target /p", "staging mount point", "staging mount point /s").Replace(sick)
	const healed = "healed: vol-1\n" +
		"  driver   a.example.com\n" +
		"  found    the target: NotMounted\n" +
		"  tried    rebind of the target failed (move_mount: EPERM\\x1b[2J), terminal, permission\n" +
		"           replace of the target (read-only)\n" +
		"  note     the target (ext4, ro) answered\n"
	for _, c := range []struct { // in this order: the heal repairs the volume
		args           string
		code           int
		stdout, stderr string
	}{
		{args: "check vol-1", code: exitAbnormal, stdout: sick},
		{args: "check vol-1 -o wide", code: exitAbnormal, stdout: wide},
		{args: "heal --dry-run vol-1", code: exitAbnormal, stdout: sick},
		{args: "check unjudged", code: exitNotJudged, stdout: "not judged: unjudged\n  note   target /p is empty\n"},
		{args: "check nope", code: exitNotFound, stderr: "healerctl: no such volume on this node\n"},
		{args: "check busy", code: exitNoAnswer, stderr: "healerctl: busy\\x1b[2J\n"},
		{args: "check vol-1 --driver bad", code: exitUsage, stderr: "healerctl: driver: bad\n"},
		{args: "check", code: exitUsage, stderr: "healerctl: the command is: healerctl check VOLUME|pvc/NAME [flags]\n"},
		{args: "audit vol-1", code: exitUsage, stderr: "healerctl: the command is: healerctl audit [flags]\n"},
		{args: "chek vol-1", code: exitUsage, stderr: "healerctl: unknown command \"chek\" for \"healerctl\" Did you mean this? check\n"},
		{args: "list -o xml", code: exitUsage, stderr: "healerctl: --output: \"xml\" is none of table, wide, json and yaml\n"},
		{args: "heal vol-1", stdout: healed},
		{args: "check vol-1", stdout: "healthy: vol-1\n  driver   a.example.com\n  note     the target (ext4, rw) answered\n"},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if code != c.code || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("%s: exit code %d, want %d\nstdout %q\n  want %q\nstderr %q\n  want %q", c.args, code, c.code, stdout, c.stdout, stderr, c.stderr)
		}
	}
}

// Errors of libraries are in words, and what is said of a wrong call is no usage text.
func TestErrorsAreInWords(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("HOME", dir)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "dead"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	other, err := net.Listen("unix", filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	go func() { _ = s.Serve(other) }()
	t.Cleanup(s.Stop)
	mute, err := net.Listen("unix", filepath.Join(dir, "mute"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	go func() {
		for c, err := mute.Accept(); err == nil; c, err = mute.Accept() {
			_ = c.Close()
		}
	}()
	apiDown := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(apiDown, []byte("clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"list --endpoint=unix://" + dir + "/none", exitNoAnswer, "there is no " + dir + "/none: run healerctl on the node"},
		{"list --endpoint=unix://" + dir + "/dead", exitNoAnswer, "nobody listens at " + dir + "/dead: "},
		{"list --endpoint=unix://" + dir + "/other", exitNoAnswer, "or another program"},
		{"list --endpoint=unix://" + dir + "/mute", exitNoAnswer, "healerctl: the server does not answer"},
		{"list --endpoint=" + dir + "/none", exitUsage, "is not unix:///PATH"},
		{"list --endpoint=unix://none", exitUsage, "is not unix:///PATH"},
		{"check pvc/data", exitNoAnswer, "there is no kubeconfig"},
		{"list -A", exitNoAnswer, "there is no kubeconfig"},
		{"list -A --kubeconfig=" + apiDown, exitNoAnswer, "healerctl: the Kubernetes API does not answer: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"explain NotMountd", exitUsage, "(did you mean NotMounted?)"},
		{"explain Xyzzyxyzzy", exitUsage, "event; they are"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"healerctl"}, strings.Fields(c.args)...), &stdout, &stderr)
		if text := stderr.String(); code != c.code || !strings.Contains(text, c.says) || strings.Count(text, "\n") != 1 || strings.Contains(text, "Usage") || strings.Contains(text, "rpc error") || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d: %s%s", c.args, code, &stdout, text)
		}
	}
}

func TestLoopIsOff(t *testing.T) {
	now := timestamppb.Now()
	f := &fakeAdmin{loopOff: true, volumes: []*adminpb.Volume{{Driver: "d", VolumeId: "v", Verdict: "healthy", Checked: now}, {Driver: "d", VolumeId: "w", Verdict: "healthy", Checked: now, Due: now}}}
	code, stdout, stderr := f.serve(t)("list")
	if code != 0 || !regexp.MustCompile(`healthy, \d+s ago\n`).MatchString(stdout) || !strings.Contains(stdout, "healthy\n") || !strings.HasPrefix(stderr, "the node's own loop is off") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// A list that may not be whole is printed, and does not pass for one that is.
func TestListWithVolumesThatAreHidden(t *testing.T) {
	f := &fakeAdmin{volumes: []*adminpb.Volume{{Driver: "d", VolumeId: "v"}}, unlisted: "cannot read /pods/2\x1b[2J"}
	code, stdout, stderr := f.serve(t)("list")
	if code != exitNoAnswer || !strings.Contains(stdout, "d        v") || stderr != "healerctl: some volumes may be missing: cannot read /pods/2\\x1b[2J\n" {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestListObeysNoTerminal(t *testing.T) {
	call := (&fakeAdmin{}).serve(t)
	for _, output := range []string{asTable, asJSON, asYAML} {
		code, stdout, stderr := call("list", "-o", output)
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s", output, code, stderr)
		}
		if strings.ContainsAny(stdout, "\x1b\a\u009b\u202e") {
			t.Errorf("%s: %q", output, stdout)
		}
		if output == asTable {
			continue // print_test.go has the whole table
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

// What was said last of a volume that is gone is not left standing; one that comes back is new.
func TestVolumeThatIsGone(t *testing.T) {
	var out bytes.Buffer
	said := map[string]string{}
	sick := []*adminpb.Volume{{Driver: "d", VolumeId: "v", Verdict: "abnormal"}}
	if err := printChanges(&out, listing{volumes: sick}, said); err != nil {
		t.Fatal(err)
	}
	for _, unlisted := range []error{errors.New("some are hidden"), nil, nil} {
		if err := printChanges(&out, listing{unlisted: unlisted}, said); err != nil {
			t.Fatal(err)
		}
	}
	if err := printChanges(&out, listing{volumes: sick}, said); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "d  v  abnormal") || !strings.HasSuffix(lines[1], "d  v  no longer listed") || !strings.HasSuffix(lines[2], "d  v  abnormal") {
		t.Errorf("%q", lines)
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
	for _, c := range newRoot(false).Commands() {
		if line := "healerctl " + c.Use; !strings.Contains(string(page), line) {
			t.Errorf("docs/healerctl.md has not: %s", line)
		}
	}
}
