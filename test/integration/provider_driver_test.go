package integration

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// vendor is a CSI driver with an opinion, which heals if it has a way to.
type vendor struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	healerpb.UnimplementedHealerNodeServer
	opinion atomic.Pointer[csi.VolumeHealth_VolumeHealthEntry]
	heal    atomic.Pointer[func(*healerpb.NodeHealerRequest) error]
}

func (*vendor) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: harness.Driver}, nil
}

func (*vendor) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}},
	}}}, nil
}

func (d *vendor) NodeGetVolumeHealth(_ context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h := &csi.VolumeHealth{VolumeId: req.GetVolumeId()}
	if e := d.opinion.Load(); e != nil {
		h.HealthStatuses = append(h.HealthStatuses, e)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
}

func (d *vendor) NodeHealer(_ context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	return &healerpb.NodeHealerResponse{Message: "healthy"}, (*d.heal.Load())(req)
}

// vendorIdentity is what the vendor answers on its CSI-Addons socket.
type vendorIdentity struct {
	identity.UnimplementedIdentityServer
}

func (vendorIdentity) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	return &identity.GetIdentityResponse{Name: harness.Driver}, nil
}

// serve serves both sockets of the driver of a node, and returns what stops answering on
// the first.
func (d *vendor) serve(t *testing.T, n *harness.Node) (hang func()) {
	t.Helper()
	dir := filepath.Join(n.Kubelet, "plugins", harness.Driver)
	harness.Mkdir(t, dir)
	listen := func(name string, register func(*grpc.Server)) *grpc.Server {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		harness.Must(t, err)
		server := grpc.NewServer()
		register(server)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		return server
	}
	first := listen("csi.sock", func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterNodeServer(s, d)
	})
	listen("csi-addons.sock", func(s *grpc.Server) {
		identity.RegisterIdentityServer(s, vendorIdentity{})
		healerpb.RegisterHealerNodeServer(s, d)
	})
	return func() {
		first.Stop()
		l, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
		harness.Must(t, err)
		t.Cleanup(func() { _ = l.Close() }) // it accepts no connection
	}
}

// staysAtWork loses the volume's target while the driver does not come to an end, so that
// nothing else heals it in several calls; then the driver gives up.
func (d *vendor) staysAtWork(n *harness.Node, v *harness.Volume) {
	n.T.Helper()
	v.Unpublish()
	lost := n.Table()
	for i, code := range []codes.Code{codes.DeadlineExceeded, codes.Aborted, codes.Internal} {
		answer := func(*healerpb.NodeHealerRequest) error { return status.Error(code, "") }
		d.heal.Store(&answer)
		switch {
		case code == codes.Internal:
			n.Expect("healed", v.Request(), "(NodeHealer: INTERNAL", "; rebind of the target in ")
		case i > 0:
			n.Expect("abnormal", v.Request(), "delegate of the target failed after ", "Refused: rebind", "may still be at work since ")
			n.SameTable(lost)
		default:
			n.Expect("abnormal", v.Request(), "(NodeHealer: DEADLINE_EXCEEDED")
			n.SameTable(lost)
		}
	}
}

// TestVendorsDriver asks a driver that serves its sockets where drivers do.
func TestVendorsDriver(t *testing.T) {
	const probeTimeout = 2 * time.Second
	n := harness.NewNode(t, "--standalone", "--probe-timeout="+probeTimeout.String()).Start()
	v := n.NewVolume("ext4", "of a vendor")
	var d vendor
	hang := d.serve(t, n)
	before := n.Table()
	n.Expect("healthy", v.Request())

	d.opinion.Store(&csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "ReplicaLost", Message: "1 of 2, key " + harness.Canary})
	n.Expect("abnormal", v.Request(), "DriverReportsAbnormal", "driver "+harness.Driver+" says: ReplicaLost (1 of 2, key [redacted])")
	d.opinion.Store(nil)

	d.staysAtWork(n, v)
	n.SameTable(before)

	for _, tc := range []struct {
		heal func(*healerpb.NodeHealerRequest) error
		says string
	}{
		{func(req *healerpb.NodeHealerRequest) error {
			if req.GetVolumePath() != v.MountPoint() || req.GetSecrets()["userKey"] != harness.Canary {
				return status.Error(codes.InvalidArgument, "another request")
			}
			v.PublishAgain()
			return nil
		}, "Done: delegate of the target in "},
		{func(*healerpb.NodeHealerRequest) error { return nil }, "; rebind of the target in "}, // it only says that it did
		{func(*healerpb.NodeHealerRequest) error { return status.Error(codes.Internal, "key "+harness.Canary) }, "Done: delegate of the target failed after "},
		{func(*healerpb.NodeHealerRequest) error { return status.Error(codes.Unimplemented, "") }, "(NodeHealer: UNIMPLEMENTED"},
		{nil, "Done: rebind of the target in "}, // it is not asked again
	} {
		d.heal.Store(&tc.heal)
		v.Unpublish()
		n.Expect("healed", v.Request(), tc.says)
		n.SameTable(before)
		n.Expect("healthy", v.Request())
	}

	hang()
	began := time.Now()
	n.Expect("healthy", v.Request())
	if took := time.Since(began); took > probeTimeout {
		t.Errorf("a driver that hangs costs %s", took)
	}
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}
