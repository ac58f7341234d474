package nodeserver

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"k8s.io/klog/v2"
)

// Peer is the process that called connect(2), as the kernel says (SO_PEERCRED, unix(7)),
// even if another one uses the socket now.
type Peer struct {
	credentials.CommonAuthInfo
	UID uint32
	GID uint32
	// PID is 0 when the process is not visible in this PID namespace.
	PID int32
}

// AuthType implements credentials.AuthInfo.
func (Peer) AuthType() string { return "unix-peercred" }

// Network implements net.Addr.
func (Peer) Network() string { return "unix" }

func (p Peer) String() string { return fmt.Sprintf("uid %d, pid %d", p.UID, p.PID) }

// peerGuard is the server side of the transport credentials. It reads the peer when a
// connection is made, and admits each call in its handler. If it closed the connection
// instead, the caller would get only UNAVAILABLE; in a tap.ServerInHandle gRPC (1.85) would keep
// the headers of a refused call until the deadline that its caller chose.
type peerGuard struct {
	// TransportCredentials is what clients would use.
	credentials.TransportCredentials

	allowed []uint32
	// rule is the name of the flag or field that allows them.
	rule string
	// callerOf returns the caller that an allowed peer calls for.
	callerOf func(Peer, metadata.MD) (caller, error)
}

func (g peerGuard) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c, is := conn.(*net.UnixConn); is { // a driver's own listener
		conn = withPeer(c)
	}
	p, ok := conn.RemoteAddr().(Peer)
	if !ok {
		err := fmt.Errorf("the kernel does not say who connected over %s: only unix sockets are served", conn.LocalAddr().Network())
		klog.Background().Info("Connection refused", keyError, err.Error())
		return nil, nil, err
	}
	return conn, p, nil
}

func (g peerGuard) knows(p Peer) bool { return slices.Contains(g.allowed, p.UID) }

func (g peerGuard) admit(ctx context.Context) (context.Context, error) {
	p, ok := peerOf(ctx)
	if !ok {
		return ctx, refused("the caller is unknown")
	}
	if !g.knows(p) {
		klog.FromContext(ctx).Info("Caller refused", keyUID, p.UID, keyPID, p.PID, keyRule, g.rule)
		return ctx, refused("uid %d may not call this server (%s)", p.UID, g.rule)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	from, err := g.callerOf(p, md)
	if err != nil {
		return ctx, refused("%s", err)
	}
	return from.in(ctx), nil
}

// peerOf returns the process that makes a call.
func peerOf(ctx context.Context) (p Peer, known bool) {
	if who, ok := peer.FromContext(ctx); ok {
		p, known = who.AuthInfo.(Peer)
	}
	return p, known
}

// IsRoot reports whether a process of root made the connection, which a listener of
// Listen accepted.
func IsRoot(conn net.Conn) bool {
	p, ok := conn.RemoteAddr().(Peer)
	return ok && p.UID == 0
}

// peerConn names the process that connected as the connection's remote address, which a
// listener around ours, as one with a limit, keeps.
type peerConn struct {
	*net.UnixConn

	peer Peer
}

func (c peerConn) RemoteAddr() net.Addr { return c.peer }

// withPeer asks the kernel who connected. A connection of which it does not say that keeps
// its address, and is refused.
func withPeer(conn *net.UnixConn) net.Conn {
	raw, err := conn.SyscallConn()
	if err != nil {
		return conn
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return conn
	}
	return peerConn{conn, Peer{
		// Only the kernel is between the two ends.
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		UID:            cred.Uid, GID: cred.Gid, PID: cred.Pid,
	}}
}
