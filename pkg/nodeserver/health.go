package nodeserver

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// Anybody on the pod network can connect to the health address. Kubelet makes
// one connection a probe, so few and short ones are enough.
const (
	healthConns = 16
	healthIdle  = 10 * time.Second
	healthAge   = time.Minute
)

// newHealthOnly makes a server that knows the health of the main one and
// nothing else, with the same limits.
func newHealthOnly(h grpc_health_v1.HealthServer) *grpc.Server {
	g := grpc.NewServer(append(limits(),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: healthIdle, MaxConnectionAge: healthAge}),
		grpc.ChainUnaryInterceptor(logUnary, recoverUnary),
		grpc.ChainStreamInterceptor(logStream, recoverStream),
	)...)
	grpc_health_v1.RegisterHealthServer(g, h)
	return g
}

// ServeHealth answers grpc.health.v1 on a listener of its own until Stop, then
// returns nil. Kubelet's gRPC probes know neither unix sockets nor TLS, so this
// is what a TCP listener is for: it names no volume, and nothing can be asked of
// it but whether the server serves.
func (s *Server) ServeHealth(l net.Listener) error {
	if err := s.healthOnly.Serve(netutil.LimitListener(l, healthConns)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve health on %s: %w", l.Addr(), err)
	}
	return nil
}
