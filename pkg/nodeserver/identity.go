package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// GetIdentity implements identity.IdentityServer.
func (s *Server) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	return &identity.GetIdentityResponse{Name: s.cfg.Name, VendorVersion: s.cfg.Version}, nil
}

// GetCapabilities implements identity.IdentityServer. It returns NODE_SERVICE alone: the
// CSI-Addons specification has no capability for healing yet.
func (s *Server) GetCapabilities(context.Context, *identity.GetCapabilitiesRequest) (*identity.GetCapabilitiesResponse, error) {
	return &identity.GetCapabilitiesResponse{Capabilities: []*identity.Capability{{
		Type: &identity.Capability_Service_{Service: &identity.Capability_Service{
			Type: identity.Capability_Service_NODE_SERVICE,
		}},
	}}}, nil
}

// Probe implements identity.IdentityServer. It answers from memory and never
// fails: an error would mean that the server has to be restarted.
func (s *Server) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: wrapperspb.Bool(s.Ready() == nil)}, nil
}

// Ready returns at once why the server cannot heal; nil if it can.
func (s *Server) Ready() error {
	if s.draining.Load() {
		return healer.ErrShuttingDown
	}
	return nil
}

// maxNameBytes bounds a driver name.
const maxNameBytes = 63

var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// ValidDriverName checks a CSI driver name by the rules that CSI and CSI-Addons
// share (GetPluginInfo and GetIdentity in their specifications): at most 63
// characters of RFC 1035 section 2.3.1 labels, joined by dots. Letters may be
// of either case, and a label may begin with a digit: the specifications allow
// it by name, as RFC 1123 section 2.1 does, and drivers use it.
func ValidDriverName(name string) error {
	switch {
	case name == "":
		return errors.New("driver name: is required")
	case len(name) > maxNameBytes:
		return fmt.Errorf("driver name %s: has %d characters, at most %d are allowed", quoted(name), len(name), maxNameBytes)
	case !driverName.MatchString(name):
		return fmt.Errorf("driver name %s: must be labels of letters, digits and hyphens, with a letter or digit at both ends, joined by dots (RFC 1035)", quoted(name))
	}
	return nil
}
