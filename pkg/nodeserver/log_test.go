package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

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

// secretKeeper calls a server with secrets, and fails where one is told.
type secretKeeper struct {
	t      *testing.T
	healer *fakeHealer
	server *served
	logged func() string
}

func newSecretKeeper(t *testing.T) secretKeeper {
	t.Helper()
	k := secretKeeper{t: t, healer: &fakeHealer{}, logged: captureLog(t, "10")}
	cfg := testConfig(k.healer)
	cfg.Standalone = true // or the engine never gets them
	k.server = serve(t, cfg)
	return k
}

// secret is a request in which all that may hold a secret does.
func secret() *healerpb.NodeHealerRequest {
	req := goodRequest()
	req.Secrets = map[string]string{canary + "1": canary + "2"}
	req.VolumeContext = map[string]string{canary + "3": canary + "4"}
	req.VolumeCapability = mount(writer, "ext4", canary+"5", "password="+canary+"6")
	return req
}

func (k secretKeeper) told(what, text string) {
	k.t.Helper()
	if strings.Contains(text, canary) {
		k.t.Errorf("%s tells a secret: %s", what, text)
	}
}

func (k secretKeeper) call(what string, req *healerpb.NodeHealerRequest, want codes.Code) {
	k.t.Helper()
	ctx, giveUp := context.WithCancel(testContext(k.t))
	defer giveUp()
	if want == codes.Canceled {
		k.healer.next(healer.Report{}, context.Canceled, func(ctx context.Context) { giveUp(); <-ctx.Done() })
	}
	resp, err := k.server.healer().NodeHealer(ctx, req)
	if status.Code(err) != want {
		k.t.Errorf("%s: got %v, want %v", what, err, want)
	}
	k.told(what, fmt.Sprintf("%v %v", resp, err))
}

// stop ends the server, whose log has so many lines of calls.
func (k secretKeeper) stop(calls int) {
	k.t.Helper()
	if err := k.server.server.Stop(testContext(k.t)); err != nil {
		k.t.Error(err)
	}
	k.told("the log", k.logged())
	k.told("grpc's log", grpcLog.String())
	if len(linesWith(k.logged(), `"NodeHealer"`)) != calls {
		k.t.Errorf("want a line for each of %d calls that came in:\n%s", calls, k.logged())
	}
}

// TestNothingSecretIsTold sends a canary wherever a request may hold something
// confidential, with every outcome of an accepted one, and looks for it everywhere.
func TestNothingSecretIsTold(t *testing.T) {
	k := newSecretKeeper(t)
	k.call("healthy", secret(), codes.OK)
	k.healer.next(healer.Report{}, nil, func(context.Context) { panic(k.healer.volumes()) })
	k.call("a panic with the request", secret(), codes.Unknown)
	k.healer.next(healer.Report{}, nil, func(ctx context.Context) {
		volumes := k.healer.volumes()
		klog.FromContext(ctx).Info("volume", "volume", volumes[len(volumes)-1], "text", fmt.Sprintf("%v %+v %#v", volumes, volumes, volumes))
	})
	k.call("an engine that logs the volume", secret(), codes.OK)
	k.healer.next(healer.Report{}, context.DeadlineExceeded, nil)
	k.call("a heal that runs out of time", secret(), codes.Unknown)
	k.call("a caller that gives up", secret(), codes.Canceled)
	k.stop(5)
}

func TestNothingSecretIsToldOfARefusedRequest(t *testing.T) {
	k := newSecretKeeper(t)
	refused := map[string]change{
		"no id":      id(""),
		"a bad path": at("x"),
		"a bad flag": func(r *healerpb.NodeHealerRequest) { r.VolumeCapability = mount(writer, "ext4", canary+"\n") },
		"many flags": func(r *healerpb.NodeHealerRequest) {
			r.VolumeCapability = mount(writer, "ext4", strings.Repeat(canary, 300))
		},
		"an empty key":    func(r *healerpb.NodeHealerRequest) { r.Secrets[""] = canary },
		"large secrets":   func(r *healerpb.NodeHealerRequest) { r.Secrets["k"] = strings.Repeat(canary, 300) },
		"a large context": func(r *healerpb.NodeHealerRequest) { r.VolumeContext["k"] = strings.Repeat(canary, 300) },
	}
	for what, change := range refused {
		req := secret()
		change(req)
		k.call(what, req, codes.InvalidArgument)
	}
	req := secret()
	req.Secrets["k"] = strings.Repeat(canary, maxRequestBytes/len(canary)+1)
	k.call("a message too large", req, codes.ResourceExhausted) // it does not come in
	k.stop(len(refused))
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
