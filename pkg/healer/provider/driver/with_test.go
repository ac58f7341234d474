package driver

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// clusters is the Stager of a cluster, which has one volume.
type clusters struct {
	FromCall
	with healer.StageRequest
	err  error
	now  healer.StageInputs
}

func (s clusters) Inputs(context.Context, healer.Case) (healer.StageInputs, error) {
	return s.now, nil
}

func (s clusters) Request(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return s.with, s.err
}

func (s clusters) Usage(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return s.with, s.err
}

// In a cluster a driver is told to heal with what the API says; one that wants secrets is
// reported, as no caller can send them.
func TestDelegateInACluster(t *testing.T) {
	f := newFake()
	f.heal = code(codes.Unauthenticated)
	p := f.serve(t)
	p.cfg.Stager = clusters{with: healer.StageRequest{
		VolumeAccessMode: "ReadWriteOnce", Block: true, MountFlags: healer.SecretList{"flag"}, VolumeContext: healer.Secrets{"pool": "the API's"},
	}}
	err := delegateOf(t, p, lost()).Run(t.Context(), allowed)
	if err == nil || healer.KindOf(err) == healer.KindUnauthenticated || healer.Classify(err).String() != "terminal/permission" ||
		!strings.Contains(err.Error(), "NodeHealer: UNAUTHENTICATED: no "+secret+"; no secrets were sent with it") {
		t.Errorf("it fails with %v", err)
	}
	r := f.healed
	if len(r.GetSecrets()) > 0 || r.GetVolumeContext()["pool"] != "the API's" || r.GetVolumeCapability().GetBlock() == nil ||
		r.GetVolumeCapability().GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("it is told %s", r)
	}
	f.healed, p.cfg.Stager = nil, clusters{err: errors.New("the API does not answer")}
	if err := delegateOf(t, p, lost()).Run(t.Context(), allowed); !errors.Is(err, healer.ErrRefused) || f.healed != nil {
		t.Errorf("it is told %s, and fails with %v", f.healed, err)
	}
}

// Without an API the loop has no secrets, and no caller who could send any: a driver that wants some
// leaves the volume sick, and the diagnosis is no error.
func TestDriverWantsSecretsOfTheLoop(t *testing.T) {
	f := newFake()
	f.heal = code(codes.Unauthenticated)
	p := f.serve(t)
	c := lost()
	c.Volume.Capability = &healer.Capability{AccessMode: "MULTI_NODE_MULTI_WRITER"}
	collect(t, p, c) // a call, which is remembered
	c.Volume = healer.Volume{ID: c.Volume.ID, Path: c.Volume.Path, Unasked: true}
	err := delegateOf(t, p, c).Run(t.Context(), allowed)
	if err == nil || healer.KindOf(err) == healer.KindUnauthenticated || !strings.Contains(err.Error(), "no secrets were sent with it") || f.healed.GetVolumeContext()["pool"] != parameter {
		t.Errorf("it fails with %v", err)
	}
}

// What a step was last called with is compared, also where nothing could be called; what was never
// tried, and what is not known now, is not changed.
func TestInputsChanged(t *testing.T) {
	p, _, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error { return status.Error(codes.PermissionDenied, "") })
	from := p.cfg.Stager.(FromCall)
	version := func(v string) healer.StageInputs { return healer.StageInputs{Version: v} }
	try := func(with, now string, err error) healer.Step {
		t.Helper()
		request := healer.StageRequest{VolumeAccessMode: "ReadWriteMany", Inputs: version(with)}
		p.cfg.Stager = clusters{FromCall: from, with: request, err: err, now: version(now)}
		s := restageStep(t, p, dead())
		if err := s.Run(t.Context(), allowed); err == nil {
			t.Error("it is no failure")
		}
		return s
	}
	for i, tc := range []struct {
		calledWith, now string
		err             error
		want            bool
	}{
		{calledWith: "1", now: "1"},
		{calledWith: "1", now: "1"},
		{calledWith: "2", now: "2", want: true},
		{calledWith: "2"},
		{calledWith: "2 unreadable", now: "2", err: errors.New("Forbidden")},
		{calledWith: "2 3", now: "2 3", want: true},
	} {
		if s := try(tc.calledWith, tc.now, tc.err); s.InputsChanged != tc.want {
			t.Errorf("%d: changed: %v", i, s.InputsChanged)
		}
	}
}

// What a driver says of a call that carried secrets or mount flags is not repeated.
func TestWhatIsSaidOfSecrets(t *testing.T) {
	const odd = `key/"+& 7`
	spelled := []string{odd, url.QueryEscape(odd), base64.StdEncoding.EncodeToString([]byte(odd)), `key/\"+\u0026 7`}
	for name, tc := range map[string]struct {
		with healer.StageRequest
		says string
	}{
		"nothing":     {healer.StageRequest{VolumeContext: healer.Secrets{"mounter": "s3fs"}}, "NodeStageVolume: INTERNAL: s3fs: " + odd},
		"secrets":     {healer.StageRequest{Secrets: healer.Secrets{"k": odd}}, "NodeStageVolume: INTERNAL: retriable; " + adviceDriver},
		"mount flags": {healer.StageRequest{MountFlags: healer.SecretList{odd}}, "NodeStageVolume: INTERNAL: retriable; " + adviceDriver},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error {
				return status.Error(codes.Internal, "s3fs: "+strings.Join(spelled, " "))
			})
			tc.with.VolumeAccessMode = "ReadWriteMany"
			from := p.cfg.Stager.(FromCall)
			p.cfg.Stager = clusters{FromCall: from, with: tc.with}
			err := restageStep(t, p, dead()).Run(t.Context(), allowed)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("it fails with %v", err)
			}
			for _, s := range spelled {
				if name != "nothing" && strings.Contains(err.Error(), s) {
					t.Errorf("it quotes %q: %v", s, err)
				}
			}
		})
	}
}
