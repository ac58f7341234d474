package nodeserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

type fakeVolumes []facts.VolumePath

func (f fakeVolumes) Volumes(context.Context) ([]facts.VolumePath, error) { return f, nil }

// fakeAudit has two lines.
type fakeAudit struct{}

func (fakeAudit) Last(volumeID string, limit int) ([][]byte, error) {
	lines := [][]byte{[]byte(`{"volumeID":"v","step":"rebind"}`), []byte(`{"volumeID":"v","outcome":"done\u0007"}`)}
	if volumeID != "" && volumeID != "v" {
		return nil, nil
	}
	return lines[max(0, len(lines)-limit):], nil
}

// What a person asks besides: what was done, and what the loop saw.
func TestAdminAuditAndStates(t *testing.T) {
	cfg := testConfig(&fakeHealer{})
	since := time.Unix(1000, 0)
	cfg.Volumes, cfg.Audit = fakeVolumes{volumeAt("d", "v", "/p", false), volumeAt("d", "v", "/q", false), volumeAt("d", "w", "/w", false)}, fakeAudit{}
	cfg.States = func(context.Context) healer.LoopState {
		return healer.LoopState{On: true, Volumes: []healer.VolumeState{{
			Driver:   "d",
			VolumeID: "v",
			Verdict:  healer.Abnormal,
			Health:   []healer.HealthEntry{{Status: healer.Inaccessible, Reason: healer.NotMounted}},
			Since:    since,
			Checked:  since,
			Tries:    2,
			Left:     healer.LeftAlone{Because: "x"},
			Error:    "the driver says no",
		}}}
	}
	s := serve(t, cfg)
	client, ctx := adminpb.NewAdminClient(s.conn), testContext(t)
	for id, want := range map[string]int{"": 2, "v": 2, "w": 0} {
		stream, err := client.ReadAudit(ctx, &adminpb.ReadAuditRequest{VolumeId: id})
		lines := 0
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				lines++
			}
		}
		if !errors.Is(err, io.EOF) || lines != want {
			t.Errorf("%q: %d lines, %v", id, lines, err)
		}
	}
	stream, err := client.ReadAudit(ctx, &adminpb.ReadAuditRequest{Limit: 1001})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	list, err := client.ListVolumes(ctx, &adminpb.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := list.Recv()
	if err != nil || v.GetVerdict() != "abnormal" || !slices.Equal(v.GetReasons(), []string{"NotMounted"}) || v.GetTries() != 2 || v.GetLeft() != "x" || v.GetError() != "the driver says no" ||
		!v.GetAbnormalSince().AsTime().Equal(since) || v.GetDue() != nil {
		t.Errorf("%v, %v", v, err)
	}
	cfg.Healer.(*fakeHealer).report = healer.Report{Driver: "d"}
	if r, err := client.CheckVolume(ctx, &adminpb.CheckVolumeRequest{Driver: "d", VolumeId: "v"}); err != nil || r.GetLoopError() != "the driver says no" {
		t.Errorf("%v, %v", r, err)
	}
	if w, err := list.Recv(); err != nil || w.GetVerdict() != "" {
		t.Errorf("%v, %v", w, err)
	}
}

// What a call showed is listed where the loop saw nothing later; and whether the loop is on.
func TestAdminListsTheLastAnswer(t *testing.T) {
	seen := time.Now()
	cfg := testConfig(&fakeHealer{})
	cfg.Volumes = fakeVolumes{volumeAt("d", "v", "/p", false)}
	loop := healer.LoopState{On: true, Volumes: []healer.VolumeState{{Driver: "d", VolumeID: "v", Verdict: healer.Healthy, Checked: seen, Due: seen.Add(time.Minute)}}}
	cfg.States = func(context.Context) healer.LoopState { return loop }
	s := serve(t, cfg)
	list := func() (v *adminpb.Volume, off bool) {
		stream, err := adminpb.NewAdminClient(s.conn).ListVolumes(testContext(t), &adminpb.ListVolumesRequest{})
		if err == nil {
			v, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = stream.Recv() // its end, with the trailer
		return v, len(stream.Trailer().Get(adminpb.TrailerLoopOff)) > 0
	}
	if v, off := list(); v.GetVerdict() != "healthy" || v.GetDue() == nil || off {
		t.Errorf("%v, off: %t", v, off)
	}
	sick := healer.Report{
		Driver: "d", Volume: healer.Volume{ID: "v"},
		After: healer.Diagnosis{Conditions: []healer.Condition{{Status: healer.Inaccessible, Reason: healer.NotMounted}}},
	}
	s.server.publish(sick, false) // only the caller says whose it is
	if v, _ := list(); v.GetVerdict() != "healthy" {
		t.Errorf("%v", v)
	}
	sick.After.Case.MountPoints = []healer.MountPoint{{Path: "/p", Proven: true}}
	known := &loop.Volumes[0]
	known.Verdict, known.Since, known.Tries, known.Left, known.Error = healer.Abnormal, seen, 2, healer.LeftAlone{Because: "x"}, "no"
	s.server.Publish(sick) // a moment after the loop has it
	if v, _ := list(); v.GetAbnormalSince() == nil || v.GetTries() != 2 || v.GetLeft() != "x" || v.GetError() != "no" {
		t.Errorf("the loop's own: %v", v)
	}
	s.server.publish(sick, false)
	if v, _ := list(); v.GetVerdict() != "abnormal" || v.GetAbnormalSince() != nil || v.GetTries() != 0 || v.GetLeft() != "" || v.GetError() != "" || v.GetDue() == nil {
		t.Errorf("a call's after it: %v", v)
	}
	known.Failed = time.Now()
	if v, _ := list(); v.GetVerdict() != "abnormal" || v.GetAbnormalSince() != nil || v.GetError() != "no" {
		t.Errorf("a call's, and the loop failed after it: %v", v)
	}
	known.Verdict, known.Health = "", []healer.HealthEntry{{Status: healer.Unknown, Reason: healer.CheckUnanswered}}
	if v, _ := list(); v.GetVerdict() != "abnormal" || !slices.Equal(v.GetReasons(), []string{"NotMounted", "CheckUnanswered"}) || v.GetError() != "no" {
		t.Errorf("a call's, and the loop failed for long, and after it: %v", v)
	}
	well := sick
	well.After.Conditions = nil
	s.server.publish(well, false)
	known.Failed = time.Now()
	if v, _ := list(); v.GetVerdict() != "" || !slices.Equal(v.GetReasons(), []string{"CheckUnanswered"}) {
		t.Errorf("healthy by a call, and the loop failed for long, and after it: %v", v)
	}
	s.server.publish(sick, false)
	known.Failed = seen
	if v, _ := list(); v.GetVerdict() != "abnormal" || v.GetError() != "" {
		t.Errorf("a call's, and the loop failed for long before it: %v", v)
	}
	known.Verdict, known.Health = healer.Healthy, nil
	loop.On = false
	if v, off := list(); v.GetVerdict() != "abnormal" || !slices.Equal(v.GetReasons(), []string{"NotMounted"}) || v.GetDue() != nil || !off {
		t.Errorf("%v, off: %t", v, off)
	}
	loop.Volumes[0].Checked = time.Now().Add(time.Hour)
	if v, _ := list(); v.GetVerdict() != "healthy" {
		t.Errorf("%v", v)
	}
	for i := range maxAnswers + 10 {
		sick.Volume.ID = fmt.Sprint(i)
		s.server.Publish(sick)
	}
	if kept := s.server.answers.Len(); kept != maxAnswers {
		t.Errorf("%d answers are kept", kept)
	}
}

func TestAdminStatus(t *testing.T) {
	a := newAdmin(t, &fakeHealer{})
	if _, err := a.GetStatus(asUID(0), nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("%v", err)
	}
	a.server.cfg.Status = func(ctx context.Context) []StatusLine {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("an API may never answer")
		}
		return []StatusLine{{"mode", "heal"}, {"api", "no\x1b[2J" + strings.Repeat("x", 2*adminTextBytes)}}
	}
	s, err := a.GetStatus(asUID(0), nil)
	if lines := s.GetLines(); err != nil || len(lines) != 2 || lines[0].GetValue() != "heal" || len(lines[1].GetValue()) > adminTextBytes || strings.Contains(lines[1].GetValue(), "\x1b") {
		t.Errorf("%v, %v", s, err)
	}
}

func volumeAt(driver, id, path string, staging bool) facts.VolumePath {
	return facts.VolumePath{VolData: facts.VolData{DriverName: driver, VolumeHandle: id}, Path: path, Staging: staging}
}

// asUID returns the context of a call by a process of that user.
func asUID(uid uint32) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.UnixAddr{}, AuthInfo: Peer{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, UID: uid,
	}})
}

func newAdmin(t *testing.T, h healer.Engine, paths ...facts.VolumePath) admin {
	t.Helper()
	cfg := testConfig(h)
	cfg.Volumes = fakeVolumes(paths)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return admin{server: s}
}

type partlyListed struct{ fakeVolumes }

func (p partlyListed) Volumes(context.Context) ([]facts.VolumePath, error) {
	return p.fakeVolumes, &facts.UnlistedError{Paths: []string{"/pods/2"}, Why: "input/output error"}
}

// What could be listed can be checked, and a volume that may be elsewhere is not said to be
// none.
func TestVolumesThatCannotAllBeListed(t *testing.T) {
	a := newAdmin(t, &fakeHealer{})
	a.server.cfg.Volumes = partlyListed{fakeVolumes{volumeAt("d", "v", "/p", false)}}
	if _, paths, _, err := a.find(asUID(0), "", "v", ""); err != nil || !slices.Equal(paths, []string{"/p"}) {
		t.Errorf("%v, %v", paths, err)
	}
	if _, _, _, err := a.find(asUID(0), "", "w", ""); err == nil || healer.KindOf(err) == healer.KindNotFound {
		t.Errorf("%v", err)
	}
	s := &contextStream{ctx: asUID(0)}
	if err := a.ListVolumes(nil, s); err == nil || err.Error() != "sent" {
		t.Errorf("%v", err)
	}
	if why := s.trailer.Get(adminpb.TrailerUnlisted); len(why) != 1 || !strings.Contains(why[0], "/pods/2") {
		t.Errorf("the caller is told %q", why)
	}
}

// A claim or pod whose name the API has not said is not said to be none.
func TestFindWithoutTheAPI(t *testing.T) {
	p := volumeAt("d", "v", "/p", false)
	p.PodUID = "uid-1"
	a := newAdmin(t, &fakeHealer{}, p)
	pod := ""
	a.server.cfg.Names = func(context.Context, facts.VolumePath) (string, string) { return "", pod }
	if _, _, _, err := a.find(asUID(0), "", "shop/web-0", ""); healer.KindOf(err) != healer.KindNotFound || !strings.Contains(err.Error(), "the API has not said") {
		t.Error(err)
	}
	pod = "shop/other"
	if _, _, _, err := a.find(asUID(0), "", "shop/web-0", ""); healer.KindOf(err) != healer.KindNotFound || strings.Contains(err.Error(), "the API has not said") {
		t.Error(err)
	}
}

// TestAdminIsForRoot asks each method as gRPC does.
func TestAdminIsForRoot(t *testing.T) {
	a, desc := newAdmin(t, &fakeHealer{}), adminpb.Admin_ServiceDesc
	for name, tc := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"another user": {asUID(1000), codes.Unauthenticated}, "no peer": {context.Background(), codes.Unauthenticated}, "root": {asUID(0), codes.DataLoss},
	} {
		got, r := map[string]error{}, registrar{admit: func(ctx context.Context) (context.Context, error) { return ctx, nil }}
		for _, m := range desc.Methods {
			handle := func(_ any, ctx context.Context, _ func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
				return around(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, status.Error(codes.DataLoss, "it gets through") })
			}
			_, got[m.MethodName] = r.unary(handle, "/"+desc.ServiceName+"/"+m.MethodName)(a, tc.ctx, nil, nil)
		}
		for _, s := range desc.Streams {
			handle := func(any, grpc.ServerStream) error { return status.Error(codes.DataLoss, "it gets through") }
			got[s.StreamName] = r.stream(handle, "/"+desc.ServiceName+"/"+s.StreamName)(a, &contextStream{ctx: tc.ctx})
		}
		for method, err := range got {
			if status.Code(err) != tc.want {
				t.Errorf("%s: %s: %v, want %s", name, method, err, tc.want)
			}
		}
		if len(got) < 6 {
			t.Errorf("asked %d methods", len(got))
		}
	}
}

// anothersListener says that uid 4711 connects, whoever does.
type anothersListener struct{ *net.UnixListener }

func (l anothersListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, Peer{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, UID: 4711}}, nil
}

// TestAdminOverASocketIsForRoot has another user call the server, and a driver's own: who may
// call the others may not call Admin.
func TestAdminOverASocketIsForRoot(t *testing.T) {
	for name, inDriver := range map[string]bool{"the server": false, "a driver's own": true} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHealer{}
			cfg := testConfig(h)
			cfg.Volumes, cfg.Audit, cfg.AllowedUIDs = fakeVolumes{volumeAt("d", "v", "/p", false)}, fakeAudit{}, []uint32{4711}
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			server := s.grpc
			if inDriver {
				server = grpc.NewServer(s.Options()...)
				s.Register(server)
			}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s.sock"), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(anothersListener{l}) }()
			t.Cleanup(server.Stop)
			conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()

			if _, err := healerpb.NewHealerNodeClient(conn).NodeHealer(testContext(t), goodRequest()); err != nil {
				t.Errorf("NodeHealer: %v", err)
			}
			got, desc := map[string]error{}, adminpb.Admin_ServiceDesc
			for _, m := range desc.Methods {
				got[m.MethodName] = conn.Invoke(testContext(t), "/"+desc.ServiceName+"/"+m.MethodName, &adminpb.HealVolumeRequest{VolumeId: "v"}, &adminpb.VolumeReport{})
			}
			for _, m := range desc.Streams {
				stream, err := conn.NewStream(testContext(t), &m, "/"+desc.ServiceName+"/"+m.StreamName)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(stream.SendMsg(&adminpb.ListVolumesRequest{}), stream.CloseSend()); err != nil {
					t.Fatal(err)
				}
				got[m.StreamName] = stream.RecvMsg(&adminpb.Volume{})
			}
			for method, err := range got {
				if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "only root") {
					t.Errorf("%s: %v", method, err)
				}
			}
			if len(h.volumes()) != 1 || len(h.checked) != 0 {
				t.Errorf("the engine was asked for %v and %v", h.volumes(), h.checked)
			}
		})
	}
}

// contextStream is a stream that nothing may be sent to.
type contextStream struct {
	grpc.ServerStream

	ctx     context.Context
	trailer metadata.MD
}

func (s *contextStream) Context() context.Context { return s.ctx }

func (s *contextStream) SetTrailer(md metadata.MD) { s.trailer = md }

func (*contextStream) Send(*adminpb.Volume) error { return errors.New("sent") }

func TestAdminFindsTheVolume(t *testing.T) {
	called := func(p facts.VolumePath, pv, uid string) facts.VolumePath {
		p.PV, p.PodUID = pv, uid
		return p
	}
	paths := []facts.VolumePath{
		volumeAt("a", "v", "/staged", true), called(volumeAt("a", "v", "/published", false), "pv-v", "uid-1"), called(volumeAt("a", "w", "/other", false), "pv-w", "uid-2"),
		called(volumeAt("a", "both", "/of-a", false), "", "uid-3"), called(volumeAt("b", "both", "/of-b", false), "pv-both", "uid-3"),
	}
	for name, c := range map[string]struct {
		name, id, driver, path string
		code                   codes.Code
	}{
		"published before staged": {id: "v", path: "/published"},
		"unknown":                 {id: "x", code: codes.NotFound},
		"of another driver":       {id: "v", driver: "b", code: codes.NotFound},
		"none":                    {code: codes.InvalidArgument},
		"too long":                {id: strings.Repeat("x", maxVolumeIDBytes+1), code: codes.InvalidArgument},
		"of two drivers":          {id: "both", code: codes.InvalidArgument},
		"of the driver named":     {id: "both", driver: "b", path: "/of-b"},
		"by a path":               {name: "/staged", id: "v", path: "/published"},
		"by its PV":               {name: "pv-both", id: "both", path: "/of-b"},
		"by its claim":            {name: "shop/pv-v", id: "v", path: "/published"},
		"by its pod":              {name: "shop/uid-1", id: "v", path: "/published"},
		"by its pod's UID":        {name: "uid-1", id: "v", path: "/published"},
		"by a pod of two volumes": {name: "shop/uid-3", code: codes.InvalidArgument},
		// A tenant has named a pod as if it were another's volume.
		"an ID before a pod": {id: "v", path: "/published"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHealer{}
			a := newAdmin(t, h, paths...)
			a.server.cfg.Names = func(_ context.Context, p facts.VolumePath) (claim, pod string) {
				switch p.PodUID {
				case "":
					return "", ""
				case "uid-2":
					return "shop/" + p.PV, "v"
				}
				return "shop/" + p.PV, "shop/" + p.PodUID
			}
			got, err := a.HealVolume(asUID(0), &adminpb.HealVolumeRequest{VolumeId: cmp.Or(c.name, c.id), Driver: c.driver})
			if c.id == "v" && err == nil && (got.GetPv() != "pv-v" || got.GetClaim() != "shop/pv-v" || !slices.Equal(got.GetPods(), []string{"shop/uid-1"})) {
				t.Errorf("%v", got)
			}
			if status.Code(err) != c.code {
				t.Fatal(err)
			}
			want := []healer.Volume{{ID: c.id, Path: c.path, Unasked: true}}
			if err != nil {
				want = nil
			}
			if got := h.volumes(); !slices.EqualFunc(got, want, func(x, y healer.Volume) bool {
				return x.ID == y.ID && x.Path == y.Path && x.Unasked == y.Unasked
			}) {
				t.Errorf("healed %v, want %v", got, want)
			}
		})
	}
}

// Who names a path vouches for it, as a caller of NodeHealer does, and by the same rules.
func TestAdminTakesAPath(t *testing.T) {
	h := &fakeHealer{}
	a := newAdmin(t, h)
	at := testRoot + "/p"
	if _, err := a.HealVolume(asUID(0), &adminpb.HealVolumeRequest{VolumeId: "v", Path: at}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CheckVolume(asUID(0), &adminpb.CheckVolumeRequest{VolumeId: "v", Path: at}); err != nil {
		t.Fatal(err)
	}
	for _, v := range append(h.volumes(), h.checked...) {
		if v.ID != "v" || v.Path != at || v.Unasked || !v.Named {
			t.Errorf("%+v", v)
		}
	}
	if _, err := a.HealVolume(asUID(0), &adminpb.HealVolumeRequest{VolumeId: "v", Path: "/etc"}); status.Code(err) != codes.InvalidArgument || len(h.asked) != 1 {
		t.Errorf("%v, healed %v", err, h.asked)
	}
}

// TestAdminTakesNoPathOfAnotherDriver: two drivers may have volumes of one ID.
func TestAdminTakesNoPathOfAnotherDriver(t *testing.T) {
	at := testRoot + "/p"
	for name, req := range map[string]*adminpb.HealVolumeRequest{
		"by the driver":                       {VolumeId: "v", Driver: "d"},
		"by a path of its volume":             {VolumeId: testRoot + "/d"},
		"by an ID that kubelet does not know": {VolumeId: "w", Driver: "d"},
	} {
		h := &fakeHealer{}
		req.Path = at
		_, err := newAdmin(t, h, volumeAt("d", "v", testRoot+"/d", false), volumeAt("e", "v", at, false)).HealVolume(asUID(0), req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "driver e") || len(h.asked) != 0 {
			t.Errorf("%s: %v, healed %v", name, err, h.asked)
		}
	}
}

func TestAdminDryRunOnlyChecks(t *testing.T) {
	at := healer.MountPoint{Path: "/p"}
	diagnosis := healer.Diagnosis{
		Conditions: []healer.Condition{{Reason: healer.NotMounted, Status: healer.Inaccessible, Acute: true, Message: "bare\x1b[2J", MountPoint: at.Path}},
		Steps: []healer.Step{
			{Name: "restage", MountPoint: at, Cost: healer.Restage, Heals: []healer.Reason{healer.NotMounted}, Refused: "not enabled"},
			{Name: "rebind", MountPoint: at, Cost: healer.Rebind, Heals: []healer.Reason{healer.NotMounted}},
			{Name: "unrelated", MountPoint: at, Heals: []healer.Reason{healer.IOError}, Refused: "so"},
		},
	}
	h := &fakeHealer{}
	h.next(healer.Report{Before: diagnosis, After: diagnosis}, nil, nil)
	got, err := newAdmin(t, h, volumeAt("d", "v", "/p", false)).HealVolume(asUID(0), &adminpb.HealVolumeRequest{VolumeId: "v", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(h.asked) != 0 || len(h.checked) != 1 {
		t.Errorf("healed %v, checked %v", h.asked, h.checked)
	}
	var steps []string
	for _, s := range got.GetSteps() {
		steps = append(steps, s.GetStep()+" "+s.GetCost()+" "+s.GetMountPoint()+" "+s.GetRefused())
	}
	if want := []string{"rebind rebind /p ", "restage restage /p not enabled"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if got.GetVerdict() != "abnormal" || strings.Contains(got.String(), "\x1b") || strings.Contains(got.GetConditions()[0].GetMessage(), "\x1b") {
		t.Errorf("report %v", got)
	}
}

// A failed step has the class of its error, as metrics and audit log have it.
func TestAdminReportClassifiesFailures(t *testing.T) {
	got := adminReport(healer.Report{Steps: []healer.Outcome{
		{Step: "rebind", MountPoint: "/p", Err: fmt.Errorf("move_mount: %w", unix.EPERM)}, {Step: "replace", MountPoint: "/p"},
	}}, false).GetOutcomes()
	if len(got) != 2 || got[0].GetTier() != "terminal" || got[0].GetErrorType() != "permission" || got[1].GetTier()+got[1].GetErrorType() != "" {
		t.Errorf("%v", got)
	}
}

// What a person reads is all in the answer: what was wrong, what was done and refused, what is
// left, what to do.
func TestAdminReportOfAHeal(t *testing.T) {
	at := healer.MountPoint{Path: "/p", Role: healer.RoleTarget}
	gone := healer.Condition{Reason: healer.NotMounted, Status: healer.Inaccessible, MountPoint: at.Path, Advice: "look"}
	r := healer.Report{
		Before:  healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{at}}, Conditions: []healer.Condition{gone}},
		Steps:   []healer.Outcome{{Step: "rebind", MountPoint: at.Path, Note: "read-only"}},
		Refused: []healer.Refusal{{Step: "restage", MountPoint: at.Path, Why: "not enabled"}},
		After: healer.Diagnosis{
			Case: healer.Case{MountPoints: []healer.MountPoint{at}}, Conditions: []healer.Condition{gone},
			Failures: []healer.ProviderFailure{{Provider: "fuse", Err: errors.New("no\nanswer")}},
		},
		Held: healer.Held{Mounts: 2},
	}
	got := adminReport(r, false)
	want := &adminpb.VolumeReport{
		Verdict: "abnormal", Message: got.GetMessage(),
		Before: []*adminpb.Condition{{Reason: "NotMounted", Status: "Inaccessible", Place: "the target"}},
		Conditions: []*adminpb.Condition{
			{Reason: "NotMounted", Status: "Inaccessible", Place: "the target", MountPoint: "/p", Advice: "look"},
			{Reason: "ProviderFailed", Status: "Unknown", Place: "provider fuse", Message: `no\nanswer`},
		},
		Outcomes: []*adminpb.Outcome{{Step: "rebind", MountPoint: "/p", Place: "the target", Note: "read-only"}},
		Steps:    []*adminpb.Step{{Step: "restage", MountPoint: "/p", Place: "the target", Refused: "not enabled"}},
		Advice:   []string{"look"}, Notes: []string{"Held by 2 mounts"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	r.After = healer.Diagnosis{Case: r.After.Case}
	if got := adminReport(r, false); got.GetVerdict() != "healed" || len(got.GetAdvice()) != 0 || len(got.GetNotes()) != 1 || !strings.HasPrefix(got.GetNotes()[0], "the target") {
		t.Errorf("healed: %v", got)
	}
}

// The longest texts of all kinds fit into an answer, also those that are no UTF-8.
func TestAdminReportIsBounded(t *testing.T) {
	long := strings.Repeat("\xffx", 2500)
	var r healer.Report
	for i := range 100 {
		path := fmt.Sprint("/", i, long)
		r.Before.Conditions = append(r.Before.Conditions, healer.Condition{Reason: healer.IOError, MountPoint: path, Message: long, Advice: long})
		r.Steps = append(r.Steps, healer.Outcome{Step: "reconnect " + long, MountPoint: path, Err: errors.New(long)})
		r.Refused = append(r.Refused, healer.Refusal{Step: "restage " + long, MountPoint: path, Why: long})
		r.Held.By = append(r.Held.By, long)
		r.Before.Conditions[i].Advice = fmt.Sprint(i, long)
	}
	r.After = r.Before
	got := adminReport(r, false)
	if raw, err := proto.Marshal(got); err != nil || len(raw) > maxResponseBytes || got.GetOmitted() != 5*(100-maxReported) {
		t.Errorf("%d bytes, %d omitted, %v", len(raw), got.GetOmitted(), err)
	}
}

// countedError counts how often its text is made.
type countedError struct{ made *int }

func (e countedError) Error() string {
	*e.made++
	return "no"
}

// Only what is listed is put into words, and mount points are counted once for all words.
func TestAdminReportWorksOnWhatItLists(t *testing.T) {
	work := func(n int) (texts int, allocated float64) {
		var r healer.Report
		for i := range n {
			p := healer.MountPoint{Path: fmt.Sprint("/p", i), Role: healer.RoleTarget, PodUID: fmt.Sprint(i)}
			r.After.Case.MountPoints = append(r.After.Case.MountPoints, p)
			r.After.Conditions = append(r.After.Conditions, healer.Condition{Reason: healer.IOError, MountPoint: p.Path, Message: "no"})
			r.Steps = append(r.Steps, healer.Outcome{Step: "rebind", MountPoint: p.Path, Err: countedError{&texts}})
		}
		message(r)
		inMessage := texts
		adminReport(r, false)
		w, out := newWording(r, maxShownPathBytes), &adminpb.VolumeReport{}
		clear(w.byPath)
		w.byPath["/p0"] = r.After.Case.MountPoints[0]
		if got := w.mention("/p0"); got != "the target of pod 0" {
			t.Errorf("of %d mount points one is %q", n, got)
		}
		return texts - 2*inMessage, testing.AllocsPerRun(1, func() { w.conditions(first(w.after, maxReported, &out.Omitted)) })
	}
	few, little := work(100)
	many, much := work(2_000)
	if few != maxReported || many != few || much != little {
		t.Errorf("%d and %d texts, %.0f and %.0f allocations", few, many, little, much)
	}
}

// The log has the code that the caller gets, and one line whatever the error holds.
func TestAdminLogsTheCode(t *testing.T) {
	logged := captureLog(t, "0")
	h := &fakeHealer{err: &healer.Error{Kind: healer.KindBusy, Text: "since\n\x1b[2J12:00"}}
	_, err := newAdmin(t, h, volumeAt("d", "v", "/p", false)).HealVolume(asUID(0), &adminpb.HealVolumeRequest{VolumeId: "v"})
	lines := linesWith(logged(), `"NodeHealer"`)
	if status.Code(err) != codes.Aborted || len(lines) != 1 || !strings.Contains(lines[0], `code="Aborted"`) || strings.Count(logged(), "\n") != 1 || strings.Contains(logged(), "\x1b") {
		t.Errorf("%v, logged:\n%s", err, logged())
	}
}

func TestAdminOff(t *testing.T) {
	cfg := testConfig(nil)
	cfg.Healer, cfg.Off, cfg.Volumes = nil, true, fakeVolumes{volumeAt("d", "v", "/p", false)}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (admin{server: s}).CheckVolume(asUID(0), &adminpb.CheckVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// The gateway's callers come over the network.
func TestAdminIsNotForTheGateway(t *testing.T) {
	cfg := testConfig(&fakeHealer{})
	cfg.Volumes = fakeVolumes{}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const name = "nodehealer.admin.v1alpha1.Admin"
	if _, here := s.grpc.GetServiceInfo()[name]; !here {
		t.Error("callers on the node do not get the Admin service")
	}
	if _, here := s.gateway.GetServiceInfo()[name]; here {
		t.Error("the gateway's callers get the Admin service")
	}
}

func TestAdminListsSorted(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	cfg := testConfig(&fakeHealer{})
	paths := fakeVolumes{volumeAt("b", "1", "/b1", false), volumeAt("a", "2", "/a2\xff", false)}
	for range 2000 { // more than one answer may hold
		paths = append(paths, volumeAt("a", "1", "/"+strings.Repeat("x", 200), true))
	}
	cfg.Volumes = paths
	s := serve(t, cfg)
	stream, err := adminpb.NewAdminClient(s.conn).ListVolumes(testContext(t), &adminpb.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		v, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(v.GetPaths())+int(v.GetOmitted()) == 0 || len(v.GetPaths()) > maxListed {
			t.Errorf("%s: %d paths and %d more", v.GetVolumeId(), len(v.GetPaths()), v.GetOmitted())
		}
		got = append(got, v.GetDriver()+" "+v.GetVolumeId())
	}
	if want := []string{"a 1", "a 2", "b 1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
