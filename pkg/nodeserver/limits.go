package nodeserver

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // or a caller that compresses would get UNIMPLEMENTED
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
)

// The limits of the server. On its own socket only root's processes may call, so there the
// limits are for mistakes and runaway clients. On the gateway's they hold off whoever took
// the gateway over: all its connections together must not take the memory of a heal.
const (
	// maxConnections are open at a time on the server's own socket, maxGatewayConnections
	// on the gateway's, which needs one. More wait in the kernel's backlog.
	maxConnections        = 64
	maxGatewayConnections = 4
	// maxRequestBytes holds the largest request that validation accepts, about 55 KiB:
	// 9 KiB of ID and paths, two maps of up to 16 KiB each in protobuf (keys of two
	// bytes without values), and mount flags of 12 KiB (one byte each). Larger messages
	// get RESOURCE_EXHAUSTED.
	maxRequestBytes = 64 << 10
	// maxResponseBytes holds the largest answer: reflection sends a file and
	// all that it imports at once, which is 38 KiB for healer.proto (CSI 1.13).
	maxResponseBytes = 256 << 10
	// maxHeaderBytes is for the headers of one call, as HTTP/2 counts them.
	// Tracing headers come to a few hundred bytes.
	maxHeaderBytes = 8 << 10
	// windowBytes is what a call may send that the server has not read yet: gRPC's
	// smallest. Without it gRPC makes the window as large as the client is fast.
	windowBytes = maxRequestBytes
	// maxStreams is the number of calls that one connection may have open, and
	// maxGatewayStreams that on the gateway's socket, which passes fewer on; the
	// client's gRPC keeps more waiting. They also bound the calls that never send their
	// message, which no time ends: the gateway has the whole message before it calls.
	maxStreams        = 128
	maxGatewayStreams = 32
	// handshakeTimeout is how long a new connection may take until HTTP/2 is
	// set up. A unix socket needs no round trip to another machine.
	handshakeTimeout = 5 * time.Second
	// keepaliveTime and keepaliveTimeout find clients that hang; a unix socket shows
	// dead ones at once. Pings are rare because they wake the client.
	keepaliveTime    = 10 * time.Minute
	keepaliveTimeout = time.Minute
	// minPingInterval is how often a client may ping, with or without calls; CSI
	// sidecars do both.
	minPingInterval = 10 * time.Second
	// streamWorkers are goroutines that serve one call after the other. Their stacks
	// have grown already; growing them is a fifth of a healthy volume's check. Calls
	// beyond them get goroutines of their own.
	streamWorkers = 8
	// bufferBytes is for reading and writing, per connection. Requests are
	// small, and grpc's 32 KiB are made for networks.
	bufferBytes = 8 << 10
)

// options returns those of a server with these limits, so many calls for each connection, and
// a guard. Idle and old connections have no limits: some CSI sidecars exit when theirs is closed.
func options(streams uint32, guard peerGuard) []grpc.ServerOption {
	guard.TransportCredentials = insecure.NewCredentials() // of which gRPC uses nothing in a server
	return []grpc.ServerOption{
		grpc.Creds(guard),
		grpc.ForceServerCodecV2(tolerantCodec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.MaxConcurrentStreams(streams),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxSendMsgSize(maxResponseBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
	}
}
