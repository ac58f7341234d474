package nodeserver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// serveInDriver registers with a driver's own gRPC server, which has a service of its own.
func serveInDriver(t *testing.T, cfg Config, guarded bool, own ...func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if guarded {
		options = s.Options()
	}
	server := grpc.NewServer(options...)
	csi.RegisterIdentityServer(server, csi.UnimplementedIdentityServer{})
	for _, register := range own {
		register(server)
	}
	s.Register(server)
	socket := filepath.Join(t.TempDir(), "csi.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestRegisterWithADriversServer(t *testing.T) {
	own := uint32(os.Getuid())
	for name, tc := range map[string]struct {
		guarded bool
		allowed uint32
		mayCall func(context.Context) (string, error)
		caller  string // empty: the call is refused
		says    string
	}{
		"with the options":            {guarded: true, allowed: own, caller: localCallers},
		"of another user":             {guarded: true, allowed: own + 1, says: "may not call this server (AllowedUIDs)"},
		"without the options":         {allowed: own, says: "without the healer's options"},
		"with a rule of the driver's": {allowed: own, mayCall: func(context.Context) (string, error) { return "uid 0", nil }, caller: "user uid 0"},
		"by a rule without a name":    {allowed: own, mayCall: func(context.Context) (string, error) { return "", nil }, says: "who calls"},
		"against that rule":           {allowed: own, mayCall: func(context.Context) (string, error) { return "", errors.New("not you") }, says: "not you"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			h := &fakeHealer{during: func(ctx context.Context) { asked = healer.CallerOf(ctx) }}
			cfg := testConfig(h)
			cfg.AllowedUIDs, cfg.MayCall = []uint32{tc.allowed}, tc.mayCall
			conn := serveInDriver(t, cfg, tc.guarded)
			_, err := healerpb.NewHealerNodeClient(conn).NodeHealer(testContext(t), goodRequest())
			switch {
			case tc.caller != "" && (err != nil || !strings.HasPrefix(asked, tc.caller)):
				t.Errorf("caller %q, %v", asked, err)
			case tc.caller == "" && (status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says) || asked != ""):
				t.Errorf("got %v, asked for %q", err, asked)
			}
			_, err = identity.NewIdentityClient(conn).GetIdentity(testContext(t), &identity.GetIdentityRequest{})
			if (err == nil) != (tc.caller != "") {
				t.Errorf("Identity: %v", err)
			}
			// The driver's own service is not ours to refuse, nor to describe.
			_, err = csi.NewIdentityClient(conn).Probe(testContext(t), &csi.ProbeRequest{})
			if got := status.Convert(err); got.Code() != codes.Unimplemented || len(got.Details()) != 0 {
				t.Errorf("the driver's own service: %v", err)
			}
		})
	}
}

// TestMayCallPanics: the driver lives, and neither a call nor a stream is let in.
func TestMayCallPanics(t *testing.T) {
	logged := captureLog(t, "0")
	h := &fakeHealer{during: func(context.Context) { t.Error("the caller is let in") }}
	cfg := testConfig(h)
	cfg.Volumes = fakeVolumes{}
	cfg.MayCall = func(context.Context) (string, error) { panic(canary) }
	conn := serveInDriver(t, cfg, false)
	_, err := healerpb.NewHealerNodeClient(conn).NodeHealer(testContext(t), goodRequest())
	stream, streamErr := adminpb.NewAdminClient(conn).ListVolumes(testContext(t), &adminpb.ListVolumesRequest{})
	if streamErr == nil {
		_, streamErr = stream.Recv()
	}
	for _, err := range []error{err, streamErr} {
		if got := status.Convert(err); got.Code() != codes.Unknown || got.Message() != "internal error, see the log of the server" {
			t.Errorf("got %v", err)
		}
	}
	if text := logged(); !strings.Contains(text, "MayCall") || strings.Contains(text, canary) {
		t.Error(text)
	}
}

// TestUndecodableInADriversServer: what cannot be decoded is the caller's mistake there, too.
func TestUndecodableInADriversServer(t *testing.T) {
	conn := serveInDriver(t, testConfig(&fakeHealer{}), true)
	err := conn.Invoke(testContext(t), healerpb.HealerNode_NodeHealer_FullMethodName, []byte("\xff"), new(healerpb.NodeHealerResponse), grpc.ForceCodecV2(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

// ownIdentity is CSI-Addons' Identity of a driver's own.
type ownIdentity struct {
	identity.UnimplementedIdentityServer
}

func (ownIdentity) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{}, nil
}

// TestADriversOwnIdentity is not ours to refuse.
func TestADriversOwnIdentity(t *testing.T) {
	for _, uid := range []int{os.Getuid(), os.Getuid() + 1} {
		cfg := testConfig(&fakeHealer{})
		cfg.AllowedUIDs = []uint32{uint32(uid)}
		conn := serveInDriver(t, cfg, true, func(s *grpc.Server) { identity.RegisterIdentityServer(s, ownIdentity{}) })
		if _, err := identity.NewIdentityClient(conn).Probe(testContext(t), &identity.ProbeRequest{}); err != nil {
			t.Errorf("uid %d may call the healer: %v", uid, err)
		}
	}
}

// TestVolumeHealthSurvivesAPanic: the driver's own server does not, and its daemons would end
// with it.
func TestVolumeHealthSurvivesAPanic(t *testing.T) {
	logged := captureLog(t, "0")
	s, err := New(testConfig(&fakeHealer{during: func(context.Context) { panic("a secret") }}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.VolumeHealth(testContext(t), &csi.NodeGetVolumeHealthRequest{VolumeId: "v", VolumePublishPath: testRoot + "/p"})
	if status.Code(err) != codes.Unknown || !strings.Contains(logged(), "Panic") || strings.Contains(logged(), "a secret") {
		t.Errorf("%v\n%s", err, logged())
	}
}
