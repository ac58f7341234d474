package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Config is everything a Server needs.
type Config struct {
	// Healer may be nil when Off is set.
	Healer healer.Engine
	// Volumes finds all volumes of this node, and so one of Driver by its ID alone. nil: each request
	// has to name a path, and the Admin service is not offered.
	Volumes Volumes
	// Names returns the claim and the pod of a path as NAMESPACE/NAME, empty where they are
	// not known; nil: there is no API to ask.
	Names func(context.Context, facts.VolumePath) (claim, pod string)
	// Status returns what a person asks of this server first, in order; nil: the Admin service
	// does not say it. It may take until ctx ends.
	Status func(context.Context) []StatusLine
	// States returns what the node's own loop saw last; nil: there is none.
	States func(context.Context) healer.LoopState
	// Audit is required with Volumes.
	Audit AuditLog
	// Driver is the one driver whose volumes are served; empty: those of several.
	Driver string
	// Name is what GetIdentity answers; see ValidDriverName.
	Name string
	// Version is the build's version, opaque to callers and never empty.
	Version string
	// Off makes NodeHealer and csi.v1.Node answer UNIMPLEMENTED, which tells callers
	// not to retry. The other services are not affected.
	Off bool
	// Standalone is true where the caller, and no API, says how a volume is used: with
	// which secrets, volume_context, mount flags and mount group.
	Standalone bool
	// Roots are the directories that volume paths must lie beneath, compared as
	// text: a root that is a symlink is listed twice, as written and resolved.
	Roots []string
	// AllowedUIDs are the users whose processes may call, as seen from this
	// process's user namespace.
	AllowedUIDs []uint32
	// GatewayUID is the user that node-healer-gateway runs as, for ServeGateway;
	// 0: there is none.
	GatewayUID uint32
	// MayCall returns the name of the caller of a server that Register was called for and that
	// has no options of ours, or why it may not call; nil: every call there is refused.
	MayCall func(context.Context) (caller string, err error)
	// Explained are the conditions that `healerctl explain` does not know by itself.
	Explained []healer.Condition
	// OnReport gets each report of a proven volume, and a function that puts a report
	// into words without durations; nil: nothing does. It must return at once.
	OnReport func(report healer.Report, words func(healer.Report) string)
}

// StatusLine is one thing that a person asks of a server.
type StatusLine struct{ Name, Value string }

// Server is the gRPC server of one node. Make it with New.
type Server struct {
	healerpb.UnimplementedHealerNodeServer
	identity.UnimplementedIdentityServer

	cfg   Config
	rules rules
	// grpc serves callers on this node, gateway those that the gateway authorized.
	grpc, gateway *grpc.Server
	health        *health.Server
	// draining is true once the server is about to end.
	draining atomic.Bool
	// answers has by volumeKey the lastAnswer.
	answers *lru.Cache
}

// lastAnswer is what the last check or heal of a volume showed, whoever asked for it.
type lastAnswer struct {
	healer.VolumeState

	ofLoop bool
}

// maxAnswers is many times what a node has.
const maxAnswers = 1024

// New checks the configuration and registers every service: HealerNode, the CSI-Addons
// Identity and CSI's Node; for callers on this node also CSI's Identity, grpc.health.v1,
// reflection v1 and v1alpha, and with Config.Volumes Admin.
func New(cfg Config) (*Server, error) {
	if cfg.Healer == nil && !cfg.Off {
		return nil, errors.New("nodeserver: a healer is required unless the server is off")
	}
	if err := ValidDriverName(cfg.Name); err != nil {
		return nil, err
	}
	if cfg.Version == "" {
		return nil, errors.New("nodeserver: a version is required")
	}
	if len(cfg.AllowedUIDs) == 0 {
		return nil, errors.New("nodeserver: at least one allowed uid is required")
	}
	if cfg.GatewayUID != 0 && slices.Contains(cfg.AllowedUIDs, cfg.GatewayUID) {
		return nil, errors.New("nodeserver: the gateway calls for others, so its uid must not be an allowed uid")
	}
	rules, err := newRules(cfg.Roots, cfg.Standalone)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, rules: rules, health: health.NewServer(), answers: lru.New(maxAnswers)}
	s.grpc = s.newGRPC(maxStreams, s.ownGuard("--allowed-uids"), s.register, s.registerLocal)
	s.gateway = s.newGRPC(maxGatewayStreams, peerGuard{allowed: []uint32{cfg.GatewayUID}, rule: "--gateway-uid", callerOf: forwardedCaller}, s.register)
	return s, nil
}

func (s *Server) newGRPC(streams uint32, guard peerGuard, register ...func(registrar)) *grpc.Server {
	r := registrar{admit: guard.admit}
	r.Server = grpc.NewServer(append(options(streams, guard), grpc.UnknownServiceHandler(r.notOffered))...)
	for _, services := range register {
		services(r)
	}
	return r.Server
}

// register registers the services that the gateway passes calls on to. None of their
// methods is a stream, which could wait for its caller.
func (s *Server) register(r registrar) {
	healerpb.RegisterHealerNodeServer(r, s)
	identity.RegisterIdentityServer(r, s)
	csi.RegisterNodeServer(r, csiNode{server: s})
}

// registerLocal registers what only callers on this node get.
func (s *Server) registerLocal(r registrar) {
	csi.RegisterIdentityServer(r, csiIdentity{server: s})
	for name := range r.GetServiceInfo() {
		s.health.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(r, s.health)
	reflection.Register(r)
	if s.cfg.Volumes != nil {
		adminpb.RegisterAdminServer(r, admin{server: s})
	}
}

// Serve answers calls until Stop, then returns nil. It closes the listener.
func (s *Server) Serve(l net.Listener) error { return serveOn(s.grpc, l, maxConnections) }

// ServeGateway is Serve for the calls that the gateway passes on, each with its caller
// and what that caller may do.
func (s *Server) ServeGateway(l net.Listener) error {
	if s.cfg.GatewayUID == 0 {
		return errors.Join(errors.New("nodeserver: ServeGateway needs Config.GatewayUID"), l.Close())
	}
	return serveOn(s.gateway, l, maxGatewayConnections)
}

func serveOn(g *grpc.Server, l net.Listener, connections int) error {
	if err := g.Serve(netutil.LimitListener(l, connections)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain has the server say that it ends: its Probe, Ready and grpc.health.v1. Calls are refused by
// the healer, which is closed before Stop.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.health.Shutdown()
}

// handlerGrace is how long calls may take to return once they were cancelled.
const handlerGrace = 500 * time.Millisecond

// Stop closes the listeners, and the connections once all calls were answered. When ctx ends first,
// it closes those too, which cancels the calls, and returns an error if some have not returned a
// moment later. Streams of reflection and health concern no volume, and a health watch never ends
// by itself.
func (s *Server) Stop(ctx context.Context) error {
	s.Drain()
	graceful := make(chan struct{})
	go func() { // until the last handler has returned, which only a healer that ignores its context delays
		defer close(graceful)
		var both sync.WaitGroup
		both.Go(s.grpc.GracefulStop)
		both.Go(s.gateway.GracefulStop)
		both.Wait()
	}()
	select {
	case <-graceful:
		return nil
	case <-ctx.Done():
	}
	s.grpc.Stop()
	s.gateway.Stop()
	select {
	case <-graceful:
		return nil
	case <-time.After(handlerGrace):
		return fmt.Errorf("some calls did not end in time: %w", context.Cause(ctx))
	}
}
