package nodeserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
)

// The two services of CSI itself that ask how volumes are, for whoever knows
// nothing of CSI-Addons. Their calls only look: they heal nothing, and nothing
// they are asked makes this server a driver.

// csiIdentity implements csi.IdentityServer. It has a type of its own because
// CSI-Addons, too, calls a method Probe.
type csiIdentity struct {
	csi.UnimplementedIdentityServer

	server *Server
}

// csiServices are the names under which health and reflection know them.
var csiServices = []string{csi.Identity_ServiceDesc.ServiceName, csi.Node_ServiceDesc.ServiceName}

func (s *Server) registerCSI(r grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(r, csiIdentity{server: s})
	csi.RegisterNodeServer(r, csiNode{server: s})
}

// GetPluginInfo implements csi.IdentityServer. The name is ours, as CSI-Addons'
// Identity has it, and no driver's.
func (i csiIdentity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.server.cfg.Name, VendorVersion: i.server.cfg.Version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. There is none: the list
// has what a plugin offers beside its Node service.
func (csiIdentity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements csi.IdentityServer. It never fails either: liveness probes
// restart what does.
func (i csiIdentity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	answer, err := i.server.Probe(ctx, &identity.ProbeRequest{})
	return &csi.ProbeResponse{Ready: answer.GetReady()}, err
}
