package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // or a caller that compresses would get UNIMPLEMENTED
	"google.golang.org/grpc/keepalive"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
)

// The limits on what callers from the network can use. They do not share fairly under
// a flood: a NetworkPolicy says who reaches the port at all.
const (
	// maxConnections are open at a time; more wait in the kernel's backlog.
	maxConnections = 256
	// maxStreams is the number of calls that one connection may have open.
	maxStreams = 32
	// maxRequestBytes is the server's own limit, and the window of a call: as much is
	// received of each before it is authorized.
	maxRequestBytes = 64 << 10
	// maxCalls are passed on at a time for each verb; more wait. The server takes 32 on
	// a connection, and one is for the registration.
	maxCalls = 15
	// callTimeout is how long a call may take in all. What the server works on goes on
	// after it.
	callTimeout = 5 * time.Minute
	// receiveTimeout is how long the request of an authorized call may take until all of
	// it is received. Clients have it when they begin the call.
	receiveTimeout = 5 * time.Second
	// maxReflections are answered at a time, reflectionTimeout is how long each may
	// take, idle or not.
	maxReflections    = 16
	reflectionTimeout = 10 * time.Second
	// maxHeaderBytes holds the largest token and 8 KiB.
	maxHeaderBytes = maxTokenBytes + 8<<10
	// handshakeTimeout is for TLS and HTTP/2 together.
	handshakeTimeout = 10 * time.Second
	// maxIdle is how long a connection may be without a call. Clients reconnect by
	// themselves, the CSI-Addons controller's too.
	maxIdle = time.Minute
	// maxAge is how long a connection is used.
	maxAge = time.Hour
	// keepaliveTime and keepaliveTimeout find peers that vanished without a FIN.
	keepaliveTime    = time.Minute
	keepaliveTimeout = 20 * time.Second
	// minPingInterval is how often a client may ping.
	minPingInterval = 10 * time.Second
	bufferBytes     = 8 << 10

	// stopTimeout is how long running calls may take when the gateway stops. Their work
	// goes on in the server.
	stopTimeout = 15 * time.Second
	// reconnectDelay bounds the pause between two attempts to reach a server that
	// restarts.
	reconnectDelay = time.Second
)

// Config is everything a Gateway needs.
type Config struct {
	// Socket is the server's second socket, "unix:///path".
	Socket string
	// Callers decides who may call.
	Callers *Callers
	TLS     TLS
	// Registration is for the CSI-Addons controller; nil: none.
	Registration *Registration
}

// Gateway passes calls on to the server of this node. Make it with New.
type Gateway struct {
	callers      *Callers
	registration *Registration
	certificates *certificates
	server       *grpc.ClientConn
	grpc         *grpc.Server
	reflection   reflectionv1.ServerReflectionServer
	// reflections and calls, these by verb, limit how many are open.
	reflections *semaphore.Weighted
	calls       map[string]*semaphore.Weighted
	// asking are the calls that the server has not answered yet.
	asking sync.WaitGroup
}

// New reads the certificate; nothing is sent yet.
func New(cfg Config) (*Gateway, error) {
	certs, err := newCertificates(cfg.TLS)
	if err != nil {
		return nil, err
	}
	if cfg.Registration != nil {
		cfg.Registration.certificates = certs
	}
	server, err := grpc.NewClient(cfg.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectDelay, Multiplier: 1, MaxDelay: reconnectDelay},
			MinConnectTimeout: handshakeTimeout, // without it the pause: the server of a busy node would be unreachable
		}))
	if err != nil {
		return nil, fmt.Errorf("gateway: the server's socket: %w", err)
	}
	g := &Gateway{
		callers: cfg.Callers, registration: cfg.Registration, certificates: certs, server: server,
		reflection: newReflection(), reflections: semaphore.NewWeighted(maxReflections),
		calls: map[string]*semaphore.Weighted{forwarded.VerbHeal: semaphore.NewWeighted(maxCalls), forwarded.VerbCheck: semaphore.NewWeighted(maxCalls)},
	}
	g.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(certs.config)),
		grpc.UnknownServiceHandler(g.serve), // no service is registered here, so it gets every call
		grpc.InTapHandle(limitTime),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true), // they use the connection to the server, which Run closes
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StaticStreamWindowSize(maxRequestBytes),
		grpc.StaticConnWindowSize(maxRequestBytes),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: maxIdle, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: callTimeout,
			Time: keepaliveTime, Timeout: keepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
	)
	return g, nil
}

// TLSConfig returns what the gateway serves with; the certificate may change later.
func (g *Gateway) TLSConfig() *tls.Config { return g.certificates.config.Clone() }

// Run serves on the listener, which it closes, until ctx ends.
func (g *Gateway) Run(ctx context.Context, l net.Listener) error {
	background, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { g.certificates.run(background) })
	if g.registration != nil {
		all.Go(func() { g.registration.Run(background, g.server) })
	}
	served := make(chan error, 1)
	go func() { served <- g.grpc.Serve(netutil.LimitListener(l, maxConnections)) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		klog.InfoS("Stopping: no new calls, running ones may end")
		late := time.AfterFunc(stopTimeout, g.grpc.Stop)
		g.grpc.GracefulStop()
		late.Stop()
		err = <-served
	}
	g.grpc.Stop() // also where serving failed
	cancel()
	all.Wait()
	err = errors.Join(err, g.server.Close())
	g.asking.Wait() // closed, the connection answers them
	return err
}
