package csidriver

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	addons "github.com/csi-addons/spec/lib/go/identity"
)

// identity says what driver this is.
type identity struct {
	csi.UnimplementedIdentityServer
	driver Driver
}

// calledNow is what the driver calls itself.
func (d Driver) calledNow() string { return cmp.Or(d.mode().Name, d.name()) }

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.driver.calledNow(), VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// addonsIdentity is what the driver answers on its CSI-Addons socket.
type addonsIdentity struct {
	addons.UnimplementedIdentityServer
	driver Driver
}

func (i addonsIdentity) GetIdentity(context.Context, *addons.GetIdentityRequest) (*addons.GetIdentityResponse, error) {
	return &addons.GetIdentityResponse{Name: i.driver.calledNow(), VendorVersion: "1"}, nil
}
