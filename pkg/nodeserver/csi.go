package nodeserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
)

// csiNode implements NodeGetVolumeHealth of csi.NodeServer, for callers that do not know
// CSI-Addons. It heals nothing, and this server is no driver.
type csiNode struct {
	csi.UnimplementedNodeServer

	server *Server
}

// maxCSIStringBytes is CSI's general limit of a string (section "Size Limits").
const maxCSIStringBytes = 128

func (n csiNode) NodeGetCapabilities(_ context.Context, _ *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	if err := n.server.offered(); err != nil {
		return nil, toStatus(err)
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}},
	}}}, nil
}

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
