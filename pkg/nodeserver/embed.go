package nodeserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// Options returns what a driver's own gRPC server needs for Register: our limits and codec,
// which hold for all of its services, and the guard, which only looks at ours. It listens on
// unix sockets only.
func (s *Server) Options() []grpc.ServerOption {
	return options(maxStreams, s.ownGuard("AllowedUIDs"))
}

func (s *Server) ownGuard(rule string) peerGuard {
	return peerGuard{allowed: s.cfg.AllowedUIDs, rule: rule, callerOf: localCaller}
}

// Register registers HealerNode, Admin, and CSI-Addons' Identity unless the driver has
// one, with a driver's own gRPC server. Without Options every call is refused, unless
// Config.MayCall says who may; Admin then is refused to everybody.
func (s *Server) Register(g *grpc.Server) {
	r := registrar{Server: g, admit: s.admitInDriver}
	healerpb.RegisterHealerNodeServer(r, s)
	if _, has := g.GetServiceInfo()[identity.Identity_ServiceDesc.ServiceName]; !has {
		identity.RegisterIdentityServer(r, s)
	}
	if s.cfg.Volumes != nil {
		adminpb.RegisterAdminServer(r, admin{server: s})
	}
}

// admitInDriver admits a call of a driver's own server, which may have been made without Options. A
// panic of MayCall would end the driver.
func (s *Server) admitInDriver(ctx context.Context) (_ context.Context, err error) {
	if _, known := peerOf(ctx); known {
		return s.ownGuard("AllowedUIDs").admit(ctx)
	}
	defer func() {
		if p := recover(); p != nil {
			logPanic(ctx, "MayCall", p)
			err = errPanicked
		} else if err != nil {
			klog.FromContext(ctx).Info("Call refused", keyError, printable.Line(err.Error(), logTextBytes))
		}
	}()
	if s.cfg.MayCall == nil {
		return ctx, refused("this gRPC server was made without the healer's options, so nothing says who calls")
	}
	name, err := s.cfg.MayCall(ctx)
	switch {
	case err != nil:
		return ctx, refused("%s", err)
	case name == "": // the audit log would name nobody
		return ctx, refused("MayCall does not say who calls")
	}
	return caller{name: foreignName(name)}.in(ctx), nil
}

// VolumeHealth answers NodeGetVolumeHealth of a driver's own csi.v1.Node, which admitted the
// caller. A panic would end the driver, and with it the daemons of its volumes.
func (s *Server) VolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (answer *csi.NodeGetVolumeHealthResponse, err error) {
	err = around(ctx, csi.Node_NodeGetVolumeHealth_FullMethodName, func() (err error) {
		answer, err = csiNode{server: s}.NodeGetVolumeHealth(ctx, req)
		return err
	})
	return answer, err
}
