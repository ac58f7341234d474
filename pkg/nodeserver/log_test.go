package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func linesWith(text, part string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return out
}

func TestOneLinePerCall(t *testing.T) {
	condition := healer.Condition{Reason: healer.NotMounted, MountPoint: "/p"}
	for name, tc := range map[string]struct {
		report healer.Report
		err    error
		want   []string
	}{
		"healthy": {healer.Report{}, nil, []string{`code="OK"`, `verdict="healthy"`, `found=""`, `done=""`}},
		"healed": {healer.Report{
			Before: healer.Diagnosis{Conditions: []healer.Condition{condition, condition}},
			Steps:  []healer.Outcome{{Step: "rebind", Err: fmt.Errorf("move_mount: %w", unix.EPERM)}, {Step: "rebind", Err: errors.New("x")}, {Step: "rebind"}},
		}, nil, []string{`code="OK"`, `verdict="healed"`, `found="NotMounted"`, `done="rebind:failed(permission),rebind:failed(unknown),rebind"`}},
		"abnormal": {healer.Report{
			After:   healer.Diagnosis{Conditions: []healer.Condition{condition}, Failures: []healer.ProviderFailure{{Provider: "csi", Err: errors.New("x")}}},
			Refused: []healer.Refusal{{Step: "rebind", Why: "not wanted"}, {Step: "rebind", Why: "not wanted"}, {Step: "cover", Why: "no"}},
		}, nil, []string{`verdict="abnormal"`, `found="NotMounted,failed:csi"`, `refused="cover: no,rebind: not wanted"`}},
		"of several pods": {healer.Report{
			Driver: "d.example.com",
			After: healer.Diagnosis{
				Case: healer.Case{
					MountPoints: []healer.MountPoint{{Path: "/p", PodUID: "uid-b"}, {Path: "/well", PodUID: "uid-c"}},
					Unjudged:    []healer.Unjudged{{MountPoint: healer.MountPoint{Path: "/q", PodUID: "uid-a"}}},
				},
				Conditions: []healer.Condition{condition},
			},
		}, nil, []string{`done="" driver="d.example.com" duration=`, `found="NotMounted,Unjudged" path="` + goodRequest().GetVolumePath() + `" pod="uid-a,uid-b" refused="" verdict="abnormal"`}},
		"of a pod that has ended": {healer.Report{
			Before: healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{{Path: "/p", PodUID: "uid-a"}}}, Conditions: []healer.Condition{condition}},
			After:  healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{{Path: "/q", PodUID: "uid-b"}}}},
			Steps:  []healer.Outcome{{Step: "rebind"}},
		}, nil, []string{`found="NotMounted"`, `pod="uid-a"`}},
		"busy":    {healer.Report{}, &healer.Error{Kind: healer.KindBusy, Text: "since\n12:00"}, []string{`code="Aborted"`, `error="since\\n12:00"`}},
		"unknown": {healer.Report{}, healer.Failed("read", errors.New("EIO")), []string{`code="Unknown"`, `err="read: EIO"`}},
	} {
		t.Run(name, func(t *testing.T) {
			verbosity := "0"
			if name == "healthy" {
				verbosity = "4"
			}
			logged := captureLog(t, verbosity)
			s := serve(t, testConfig(&fakeHealer{report: tc.report, err: tc.err}))
			req := goodRequest()
			req.VolumeId = "vol\n1\u202e"
			_, _ = s.healer().NodeHealer(testContext(t), req)
			lines := linesWith(logged(), `"NodeHealer"`)
			if len(lines) != 1 || strings.Count(logged(), "\n") != 1 {
				t.Fatalf("want one line, got:\n%s", logged())
			}
			for _, want := range append(tc.want, `volume_id="vol\\n1\\u202e"`, "duration=") {
				if !strings.Contains(lines[0], want) {
					t.Errorf("%s is not in %s", want, lines[0])
				}
			}
		})
	}
}

func TestEngineLogsUnderTheVolume(t *testing.T) {
	logged := captureLog(t, "0")
	s := serve(t, testConfig(&fakeHealer{during: func(ctx context.Context) { klog.FromContext(ctx).Info("inside") }}))
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
		t.Fatal(err)
	}
	if lines := linesWith(logged(), `"inside"`); len(lines) != 1 || !strings.Contains(lines[0], `volume_id="vol-1"`) {
		t.Errorf("got:\n%s", logged())
	}
}

// TestNothingSecretIsTold sends a canary wherever a request may hold something
// confidential, with every outcome there is, and looks for it everywhere.
func TestNothingSecretIsTold(t *testing.T) {
	logged := captureLog(t, "10")
	h := &fakeHealer{}
	cfg := testConfig(h)
	cfg.Standalone = true // or the engine never gets them
	s := serve(t, cfg)
	secret := func() *healerpb.NodeHealerRequest {
		req := goodRequest()
		req.Secrets = map[string]string{canary + "1": canary + "2"}
		req.VolumeContext = map[string]string{canary + "3": canary + "4"}
		req.VolumeCapability = mount(writer, "ext4", canary+"5", "password="+canary+"6")
		return req
	}
	told := func(what, text string) {
		t.Helper()
		if strings.Contains(text, canary) {
			t.Errorf("%s tells a secret: %s", what, text)
		}
	}
	call := func(what string, req *healerpb.NodeHealerRequest, want codes.Code) {
		t.Helper()
		ctx := testContext(t)
		if want == codes.DeadlineExceeded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
		}
		resp, err := s.healer().NodeHealer(ctx, req)
		// The server may be the first to see the deadline of a caller that gives up.
		overtaken := want == codes.DeadlineExceeded && status.Code(err) == codes.Unknown
		if status.Code(err) != want && !overtaken {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
		told(what, fmt.Sprintf("%v %v", resp, err))
	}

	call("healthy", secret(), codes.OK)
	h.next(healer.Report{}, nil, func(context.Context) { panic(h.volumes()) })
	call("a panic with the request", secret(), codes.Unknown)
	h.next(healer.Report{}, nil, func(ctx context.Context) {
		volumes := h.volumes()
		klog.FromContext(ctx).Info("volume", "volume", volumes[len(volumes)-1], "text", fmt.Sprintf("%v %+v %#v", volumes, volumes, volumes))
	})
	call("an engine that logs the volume", secret(), codes.OK)
	h.next(healer.Report{}, context.DeadlineExceeded, func(ctx context.Context) { <-ctx.Done() })
	call("a caller that gives up", secret(), codes.DeadlineExceeded)
	h.next(healer.Report{}, nil, nil)

	for what, change := range map[string]change{
		"no id":      id(""),
		"a bad path": at("x"),
		"a bad flag": func(r *healerpb.NodeHealerRequest) { r.VolumeCapability = mount(writer, "ext4", canary+"\n") },
		"many flags": func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = mount(writer, "ext4", strings.Repeat(canary, 300))
		},
		"an empty key":    func(r *healerpb.NodeHealerRequest) { r.Secrets[""] = canary },
		"large secrets":   func(r *healerpb.NodeHealerRequest) { r.Secrets["k"] = strings.Repeat(canary, 300) },
		"a large context": func(r *healerpb.NodeHealerRequest) { r.VolumeContext["k"] = strings.Repeat(canary, 300) },
	} {
		req := secret()
		change(req)
		call(what, req, codes.InvalidArgument)
	}
	req := secret()
	req.Secrets["k"] = strings.Repeat(canary, maxRequestBytes/len(canary)+1)
	call("a message too large", req, codes.ResourceExhausted)

	if err := s.server.Stop(testContext(t)); err != nil {
		t.Error(err)
	}
	told("the log", logged())
	told("grpc's log", grpcLog.String())
	if len(linesWith(logged(), `"NodeHealer"`)) != 4+7 {
		t.Errorf("want a line for each call that came in:\n%s", logged())
	}
}

func TestOtherCallsShowAtV4(t *testing.T) {
	for verbosity, want := range map[string]int{"3": 0, "4": 1} {
		logged := captureLog(t, verbosity)
		s := serve(t, testConfig(&fakeHealer{}))
		set := describe(t, s, "healer.HealerNode")
		if len(set.GetFile()) == 0 {
			t.Error("no files")
		}
		_ = s.server.Stop(testContext(t))
		if got := linesWith(logged(), `method="/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" code="OK"`); len(got) != want {
			t.Errorf("-v=%s: got %d lines:\n%s", verbosity, len(got), logged())
		}
	}
}
