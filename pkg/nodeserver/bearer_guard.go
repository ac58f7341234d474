package nodeserver

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The verbs that an Authorizer is asked for.
const (
	// VerbHeal is NodeHealer's.
	VerbHeal = "heal"
	// VerbCheck is everything else's.
	VerbCheck = "check"
)

// Authorizer judges who may call over TCP.
type Authorizer interface {
	// Authorize says why the bearer of a token may not do what the verb names.
	// The text is for the caller, and holds nothing of the token. It is called
	// for each call, many at once, and must return soon after ctx ends. source
	// is a machine, or a connection that has shown a good token before: what one
	// of them asks for should cost the others nothing.
	Authorize(ctx context.Context, source, token, verb string) error
}

// tokenGuard asks the authorizer, and tells the door what it said.
type tokenGuard struct {
	authorizer Authorizer
	// refusals are the calls that were refused with a token.
	refusals rationed
}

// admit judges a call. If it may go on, leave is to be called at its end.
func (g *tokenGuard) admit(ctx context.Context, method string) (leave func(), err error) {
	who, _ := peer.FromContext(ctx)
	if who == nil {
		return nil, status.Error(codes.Unauthenticated, "the caller is unknown")
	}
	from, ok := who.AuthInfo.(caller)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "the caller is unknown")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	token, err := bearerToken(md)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	judged, leave, ok := from.visitor.ask()
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "too many callers are being authenticated, try again")
	}
	err = guarded(ctx, method, func() error { return g.authorizer.Authorize(ctx, from.visitor.origin(), token, verbOf(method)) })
	judged(err)
	if err == nil {
		return leave, nil
	}
	leave()
	text := oneLine(healer.Secrets{authorizationKey: token}.Redact(err.Error()), statusBytes)
	if more, due := g.refusals.due(); due {
		klog.FromContext(ctx).Info("Caller refused", keySource, from.visitor.source, keyMethod, oneLine(method, logTextBytes), keyError, text, keyMore, more)
	}
	return nil, status.Error(codes.Unauthenticated, text)
}

func verbOf(method string) string {
	if method == healerpb.HealerNode_NodeHealer_FullMethodName {
		return VerbHeal
	}
	return VerbCheck
}

// unknown answers for methods that nobody registered: to callers who may ask at
// all, as on the socket.
func (g *tokenGuard) unknown(_ any, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return errors.New("nodeserver: a call without a method")
	}
	leave, err := g.admit(stream.Context(), method)
	if err != nil {
		return err
	}
	defer leave()
	return status.Errorf(codes.Unimplemented, "unknown method %s", oneLine(method, statusBytes))
}

// tokenRegistrar registers services with handlers that ask for a token before
// they do anything. An interceptor would come too late: grpc-go runs those of
// unary calls when the request has been received and decoded.
type tokenRegistrar struct {
	registrar
	guard *tokenGuard
}

// RegisterService implements grpc.ServiceRegistrar. The description is copied,
// the generated one belongs to its package.
func (r tokenRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		d.Methods[i] = r.guard.method(m, "/"+desc.ServiceName+"/"+m.MethodName)
	}
	d.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		d.Streams[i] = r.guard.stream(s, "/"+desc.ServiceName+"/"+s.StreamName)
	}
	r.registrar.RegisterService(&d, impl)
}

func (g *tokenGuard) method(m grpc.MethodDesc, method string) grpc.MethodDesc {
	handle := m.Handler
	m.Handler = func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		leave, err := g.admit(ctx, method)
		if err != nil {
			return nil, err
		}
		defer leave()
		return handle(srv, ctx, dec, i)
	}
	return m
}

func (g *tokenGuard) stream(s grpc.StreamDesc, method string) grpc.StreamDesc {
	handle := s.Handler
	s.Handler = func(srv any, stream grpc.ServerStream) error {
		leave, err := g.admit(stream.Context(), method)
		if err != nil {
			return err
		}
		defer leave()
		return handle(srv, stream)
	}
	return s
}
