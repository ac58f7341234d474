package driver

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

const (
	driverName = "d.example.com"
	csiSocket  = "/var/lib/kubelet/plugins/d.example.com/csi.sock"
	addonsAt   = "/var/lib/kubelet/plugins/d.example.com/csi-addons.sock"
	published  = "/real/kubelet/pods/a/mount"
	staged     = "/real/kubelet/staged/globalmount"
	secret     = "the-secret"
	parameter  = "the-parameter"
)

var disk = facts.Dev{Major: 8, Minor: 16}

// healthy is a volume that works.
func healthy() healer.Case {
	return healer.Case{
		Volume: healer.Volume{
			ID: "v", Path: published, StagingPath: staged,
			Secrets: healer.Secrets{"key": secret}, Context: healer.Secrets{"pool": parameter},
		},
		Driver:      driverName,
		Record:      &healer.Record{},
		Superblocks: map[facts.Dev]healer.Superblock{disk: {Dev: disk, FSType: "ext4", Answer: facts.Answer{Asked: true}}},
		MountPoints: []healer.MountPoint{
			{Role: healer.RoleTarget, Path: published, Named: true, Proven: true, Stack: []facts.Mount{{Dev: disk, Path: published}}},
			{Role: healer.RoleStaging, Path: staged, Proven: true, Stack: []facts.Mount{{Dev: disk, Path: staged}}},
		},
	}
}

// fake is a driver with its sockets.
type fake struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	healerpb.UnimplementedHealerNodeServer

	name         string
	capabilities []csi.NodeServiceCapability_RPC_Type
	health       func(context.Context) (*csi.VolumeHealth, error)
	stats        func(context.Context) (*csi.NodeGetVolumeStatsResponse, error)
	heal         func(context.Context) (*healerpb.NodeHealerResponse, error)
	stage        func(context.Context) error

	mu     sync.Mutex
	asked  []string
	paths  []string
	healed *healerpb.NodeHealerRequest
}

func newFake() *fake {
	return &fake{name: driverName, capabilities: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}}
}

func (f *fake) note(method string, paths ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, method)
	f.paths = append(f.paths, paths...)
}

// take returns the methods that were called since the last take.
func (f *fake) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// count returns how often a method was called since the last take.
func (f *fake) count(method string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.asked {
		if m == method {
			n++
		}
	}
	return n
}

func (f *fake) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	f.note("GetPluginInfo")
	return &csi.GetPluginInfoResponse{Name: f.name}, nil
}

func (f *fake) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	f.note("NodeGetCapabilities")
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range f.capabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

func (f *fake) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	f.note("NodeGetVolumeHealth", req.GetVolumePublishPath(), req.GetStagingTargetPath())
	if f.health == nil {
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId()}}, nil
	}
	h, err := f.health(ctx)
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, err
}

func (f *fake) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	f.note("NodeGetVolumeStats", req.GetVolumePath())
	if f.stats == nil {
		return nil, status.Error(codes.Internal, "unexpected")
	}
	return f.stats(ctx)
}

func (f *fake) NodeStageVolume(ctx context.Context, _ *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	f.note("NodeStageVolume")
	return &csi.NodeStageVolumeResponse{}, f.stage(ctx)
}

func (f *fake) NodeHealer(ctx context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	f.note("NodeHealer")
	f.mu.Lock()
	f.healed = req
	f.mu.Unlock()
	if f.heal == nil {
		return nil, status.Error(codes.Unimplemented, "not here")
	}
	return f.heal(ctx)
}

// addons is the identity on the CSI-Addons socket.
type addons struct {
	identity.UnimplementedIdentityServer
	*fake
}

func (a addons) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	a.note("GetIdentity")
	return &identity.GetIdentityResponse{Name: a.name}, nil
}

// listen serves a unix socket and returns how to connect to it.
func listen(t *testing.T, register func(*grpc.Server)) func(context.Context) (net.Conn, error) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return dialer(at)
}

func dialer(at string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", at)
		// Not the socket itself, which would show that the listener is this process.
		return struct{ net.Conn }{conn}, err
	}
}

// serve returns a provider whose driver has both sockets.
func (f *fake) serve(t *testing.T) *Provider {
	t.Helper()
	return provider(&providertest.Tools{Sockets: map[string]func(context.Context) (net.Conn, error){
		csiSocket: listen(t, func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, f)
			csi.RegisterNodeServer(s, f)
		}),
		addonsAt: listen(t, func(s *grpc.Server) {
			identity.RegisterIdentityServer(s, addons{fake: f})
			healerpb.RegisterHealerNodeServer(s, f)
		}),
	}})
}

func provider(tools *providertest.Tools) *Provider {
	return New(Config{KubeletRoot: "/var/lib/kubelet", RealRoot: "/real/kubelet", StepTimeout: time.Minute, Stager: NewFromCall(nil)}, tools)
}

const (
	// patience is long enough for a driver that answers, on a busy machine.
	patience = time.Minute
	// hanging is long enough for one that hangs: each of its answers may take some seconds.
	hanging = 3 * parts * time.Second
)

func collect(t *testing.T, p *Provider, c healer.Case) Evidence {
	t.Helper()
	return collectWithin(t, p, c, patience)
}

func collectWithin(t *testing.T, p *Provider, c healer.Case, d time.Duration) Evidence {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	got, err := p.Collect(ctx, c)
	if err != nil {
		t.Fatal("an error makes the volume abnormal: ", err)
	}
	e, _ := got.(Evidence)
	return e
}

// with returns a case with the evidence, as the engine puts it there.
func with(c healer.Case, e Evidence) healer.Case {
	c.Evidence = map[string]healer.Evidence{name: e}
	return c
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
