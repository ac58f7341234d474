package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func (s *served) node() csi.NodeClient { return csi.NewNodeClient(s.conn) }

func (f *fakeHealer) checks() []healer.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.checked)
}

const (
	pathA = testRoot + "/pods/1/volumes/kubernetes.io~csi/pv-a/mount"
	pathS = testRoot + "/plugins/kubernetes.io/csi/d/h/globalmount"
)

func healthOf(id, publish, staging string) *csi.NodeGetVolumeHealthRequest {
	return &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: publish, StagingTargetPath: staging}
}

func TestCSIIdentity(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	client, ctx := csi.NewIdentityClient(s.conn), testContext(t)
	who, err := client.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil || who.GetName() != "healer.example.com" || who.GetVendorVersion() != "v1.2.3" {
		t.Errorf("got %v, %v", who, err)
	}
	can, err := client.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(can.GetCapabilities()) != 0 {
		t.Errorf("got %v, %v", can, err)
	}
	if ready, err := client.Probe(ctx, &csi.ProbeRequest{}); err != nil || !ready.GetReady().GetValue() {
		t.Errorf("got %v, %v", ready, err)
	}
	s.server.Drain()
	if ready, err := client.Probe(ctx, &csi.ProbeRequest{}); err != nil || ready.GetReady() == nil || ready.GetReady().GetValue() {
		t.Errorf("while stopping: got %v, %v", ready, err)
	}
}

func TestNodeCapabilities(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	resp, err := s.node().NodeGetCapabilities(testContext(t), &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, c := range resp.GetCapabilities() {
		got = append(got, int(c.GetRpc().GetType()))
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{int(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)}) {
		t.Errorf("got %v", got)
	}
}

// everyNodeCall makes a request of each kind, valid where this server offers it.
func everyNodeCall(ctx context.Context, c csi.NodeClient) map[string]error {
	calls := map[string]error{}
	_, calls["NodeStageVolume"] = c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{})
	_, calls["NodeUnstageVolume"] = c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{})
	_, calls["NodePublishVolume"] = c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{})
	_, calls["NodeUnpublishVolume"] = c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{})
	_, calls["NodeExpandVolume"] = c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{})
	_, calls["NodeGetInfo"] = c.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	_, calls["NodeGetCapabilities"] = c.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	_, calls["NodeGetVolumeStats"] = c.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: pathA})
	_, calls["NodeGetVolumeHealth"] = c.NodeGetVolumeHealth(ctx, healthOf("v", pathA, ""))
	_, calls["NodeGetStorageHealth"] = c.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	return calls
}

// reasonOf returns the reason in the details of an error; empty where there are none.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, is := d.(*errdetails.ErrorInfo); is && info.GetDomain() == api.ErrorDomain {
			return info.GetReason()
		}
	}
	return ""
}

func TestWhatIsOffered(t *testing.T) {
	offered := []string{"NodeGetCapabilities", "NodeGetVolumeHealth"}
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for name, err := range everyNodeCall(testContext(t), s.node()) {
		want, reason := codes.Unimplemented, "NOT_OFFERED"
		if slices.Contains(offered, name) {
			want, reason = codes.OK, ""
		}
		if status.Code(err) != want || reasonOf(err) != reason {
			t.Errorf("%s: got %v %s, want %v %s", name, err, reasonOf(err), want, reason)
		}
	}
	if len(h.volumes()) != 0 || len(h.checks()) != 1 {
		t.Errorf("healed %v, checked %v", h.volumes(), h.checks())
	}
}

func TestCSIOfAServerThatIsOff(t *testing.T) {
	cfg := testConfig(nil)
	cfg.Off = true
	s := serve(t, cfg)
	disabled := []string{"NodeGetCapabilities", "NodeGetVolumeHealth"}
	for name, err := range everyNodeCall(testContext(t), s.node()) {
		reason := "NOT_OFFERED" // in no other mode either
		if slices.Contains(disabled, name) {
			reason = "DISABLED"
		}
		if status.Code(err) != codes.Unimplemented || reasonOf(err) != reason {
			t.Errorf("%s: got %v %s, want %s", name, err, reasonOf(err), reason)
		}
	}
	if ready, err := csi.NewIdentityClient(s.conn).Probe(testContext(t), &csi.ProbeRequest{}); err != nil || !ready.GetReady().GetValue() {
		t.Errorf("a liveness probe would restart it: %v, %v", ready, err)
	}
}

func TestCSIRequestRules(t *testing.T) {
	long := strings.Repeat("x", maxVolumeIDBytes+1)
	for name, tc := range map[string]struct {
		id, path, staging string
		want              string // the start of the error; empty: valid
	}{
		"as it is":           {id: "v", path: pathA, staging: pathS},
		"no id":              {path: pathA, want: "volume_id: is required"},
		"blank id":           {id: " ", path: pathA, want: "volume_id: must not be blank"},
		"long id":            {id: long, path: pathA, want: "volume_id: has 1025 bytes"},
		"outside":            {id: "v", path: "/etc", want: "volume_publish_path: must be beneath"},
		"dots":               {id: "v", path: pathA + "/..", want: "volume_publish_path: must be a clean path"},
		"control characters": {id: "v", path: pathA + "\n", want: "volume_publish_path: must not contain control characters"},
		"staging relative":   {id: "v", path: pathA, staging: "x", want: "staging_target_path: must be an absolute path"},
		"staging outside":    {id: "v", path: pathA, staging: "/tmp/x", want: "staging_target_path: must be beneath"},
		"id before path":     {path: "/etc", want: "volume_id:"},
		"path before rest":   {id: "v", path: "/etc", staging: "x", want: "volume_publish_path:"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHealer{}
			s := serve(t, testConfig(h))
			_, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf(tc.id, tc.path, tc.staging))
			want := codes.InvalidArgument
			if tc.want == "" {
				want = codes.OK
			}
			if status.Code(err) != want || !strings.HasPrefix(status.Convert(err).Message(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			if asked := h.checks(); tc.want != "" && len(asked) != 0 {
				t.Errorf("asked for %v", asked)
			} else if tc.want == "" && fmt.Sprint(asked) != fmt.Sprint([]healer.Volume{{ID: "v", Path: pathA, StagingPath: pathS}}) {
				t.Errorf("asked for %v", asked)
			}
		})
	}
}

func TestCSIErrors(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for name, tc := range map[string]struct {
		err  error
		want codes.Code
	}{
		"busy":      {&healer.Error{Kind: healer.KindBusy, Text: "since 12:00"}, codes.Aborted},
		"not found": {healer.NotFound("gone"), codes.NotFound},
		"invalid":   {healer.Invalid("volume_path", "is a symbolic link"), codes.InvalidArgument},
		"failed":    {healer.Failed("read the mount table", errors.New("EIO")), codes.Unknown},
	} {
		h.next(healer.Report{}, tc.err, nil)
		_, got := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, ""))
		if status.Code(got) != tc.want || status.Convert(got).Message() != tc.err.Error() {
			t.Errorf("%s: got %v", name, got)
		}
	}
	h.next(healer.Report{}, nil, func(context.Context) { panic("x") })
	if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); status.Code(err) != codes.Unknown {
		t.Errorf("a panic: %v", err)
	}
	h.next(healer.Report{}, healer.ErrShuttingDown, nil)
	if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); status.Code(err) != codes.Aborted {
		t.Errorf("while stopping: %v", err)
	}
}

func TestCSICallsShowAtV4(t *testing.T) {
	for verbosity, want := range map[string]int{"3": 0, "4": 1} {
		logged := captureLog(t, verbosity)
		s := serve(t, testConfig(&fakeHealer{}))
		if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); err != nil {
			t.Error(err)
		}
		_ = s.server.Stop(testContext(t))
		if got := linesWith(logged(), `method="/csi.v1.Node/NodeGetVolumeHealth" code="OK"`); len(got) != want {
			t.Errorf("-v=%s: got %d lines:\n%s", verbosity, len(got), logged())
		}
	}
}

func TestChecksAreReported(t *testing.T) {
	var noted []string
	h := &fakeHealer{}
	cfg := testConfig(h)
	cfg.OnReport = func(r healer.Report, words func(healer.Report) string) {
		noted = append(noted, r.Volume.ID+" "+words(r))
	}
	s := serve(t, cfg)
	sick := healer.Report{Volume: healer.Volume{ID: "theirs"}, After: healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.IOError}}}}
	for _, proven := range []bool{true, false} { // who may only ask cannot make others read what is not so
		sick.After.Case.MountPoints = []healer.MountPoint{{Path: pathA, Named: true, Proven: proven, Stack: []facts.Mount{{Path: pathA}}}}
		h.next(sick, nil, nil)
		if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); err != nil {
			t.Error(err)
		}
	}
	h.next(healer.Report{}, healer.NotFound("gone"), nil)
	if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); err == nil {
		t.Error("an answer")
	}
	if want := []string{"v abnormal: the volume: IOError. Nothing was changed"}; !slices.Equal(noted, want) {
		t.Errorf("got %q, want %q", noted, want)
	}
}

// A path at which nothing is mounted, and that nothing but the caller calls the
// volume's, is no sick volume.
func TestNoVolumeAtThePath(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for _, tc := range []struct {
		proven bool
		stack  []facts.Mount
		want   codes.Code
	}{
		{want: codes.NotFound},
		{proven: true, want: codes.OK},
		{stack: []facts.Mount{{Path: pathA}}, want: codes.OK},
	} {
		r := healer.Report{}
		r.After.Case.MountPoints = []healer.MountPoint{{Path: pathA, Proven: tc.proven, Stack: tc.stack}}
		h.next(r, nil, nil)
		if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, "")); status.Code(err) != tc.want {
			t.Errorf("health, %+v: %v", tc, err)
		}
	}
}
