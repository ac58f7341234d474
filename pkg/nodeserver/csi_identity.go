package nodeserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
)

// csiIdentity implements csi.IdentityServer, for callers that do not know CSI-Addons. It
// is not Server because CSI-Addons' Identity has a method Probe, too.
type csiIdentity struct {
	csi.UnimplementedIdentityServer

	server *Server
}

// GetPluginInfo implements csi.IdentityServer. The name is the one of CSI-Addons'
// Identity, and no driver's.
func (i csiIdentity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.server.cfg.Name, VendorVersion: i.server.cfg.Version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. The list is empty: it has what a
// plugin offers beside its Node service.
func (csiIdentity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements csi.IdentityServer. It never fails, because liveness probes restart
// a server that does.
func (i csiIdentity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	answer, err := i.server.Probe(ctx, &identity.ProbeRequest{})
	return &csi.ProbeResponse{Ready: answer.GetReady()}, err
}
