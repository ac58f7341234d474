package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
)

// TCP is what callers from elsewhere need: TLS always, and a bearer token that
// somebody else judges.
type TCP struct {
	// Authorizer judges each call.
	Authorizer Authorizer
	TLS        TLS
}

// ListenTCP opens an endpoint "tcp://host:port"; without a host it listens on
// every address of this node.
func ListenTCP(ctx context.Context, endpoint string) (net.Listener, error) {
	address, err := tcpAddress(endpoint)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return l, nil
}

func tcpAddress(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint %s: must be tcp://host:port", quoted(endpoint))
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return "", fmt.Errorf("endpoint %s: what follows tcp:// must be host:port", quoted(endpoint))
	}
	return address, nil
}

// ServeTCP answers callers who bring a token until Stop, then returns nil. It
// closes the listener.
func (s *Server) ServeTCP(l net.Listener) error {
	if s.tcp == nil {
		_ = l.Close()
		return errors.New("nodeserver: ServeTCP needs Config.TCP")
	}
	if err := s.tcp.Serve(newDoor(l)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// newTCP makes the server for TCP. Everything that is registered with it asks
// for a token first, and so do methods that nobody registered.
func newTCP(cfg TCP) (tokenRegistrar, error) {
	if cfg.Authorizer == nil {
		return tokenRegistrar{}, errors.New("nodeserver: TCP needs an authorizer")
	}
	creds, err := newTLSCredentials(cfg.TLS)
	if err != nil {
		return tokenRegistrar{}, err
	}
	guard := &tokenGuard{authorizer: cfg.Authorizer}
	g := grpc.NewServer(append(tcpLimits(),
		grpc.Creds(creds),
		grpc.InTapHandle(tapToken),
		grpc.UnknownServiceHandler(guard.unknown),
		grpc.ForceServerCodecV2(newTolerantCodec()),
		grpc.ChainUnaryInterceptor(logUnary, recoverUnary),
		grpc.ChainStreamInterceptor(logStream, recoverStream),
	)...)
	return tokenRegistrar{registrar{g}, guard}, nil
}
