package nodeserver

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// grpc-go answers INTERNAL to a request that it cannot decode, and (seen in 1.85) sends
// the status before a handler or an interceptor could change it. So the decoder must
// not fail: handlers receive into an envelope, the codec keeps its error in there, and
// receive returns it as INVALID_ARGUMENT.

// envelope is a message and the error of decoding it.
type envelope struct {
	msg any
	err error
}

type tolerantCodec struct {
	encoding.CodecV2
}

func (c tolerantCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if e, ok := v.(*envelope); ok {
		e.err = c.CodecV2.Unmarshal(data, e.msg)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// receive receives a message through an envelope. The error names the message's type
// and nothing of its content.
func receive(ctx context.Context, method string, recv func(any) error, msg any) error {
	e := &envelope{msg: msg}
	err := recv(e)
	if err != nil || e.err == nil {
		return err
	}
	text := "the request cannot be decoded as " + string(proto.MessageName(msg.(proto.Message)))
	// Neither around nor the interceptors of a driver's server see this call.
	klog.FromContext(ctx).Info("Call refused", keyMethod, method, keyCode, codes.InvalidArgument.String(), keyError, text)
	return toStatus(&healer.Error{Kind: healer.KindInvalid, Text: text})
}

// registrar registers services with handlers of unary calls that receive through
// envelopes: the streams, of health, reflection and Admin, have no codes of the contract.
// What we do around a call is done here, and not in interceptors of the server, which a
// driver may have for services of its own.
type registrar struct {
	*grpc.Server
	// admit returns the context of a call with its caller, or why the call is refused.
	admit func(context.Context) (context.Context, error)
}

// RegisterService implements grpc.ServiceRegistrar. It changes a copy of the generated
// description.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods, d.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range d.Methods {
		m := &d.Methods[i]
		m.Handler = r.unary(m.Handler, "/"+desc.ServiceName+"/"+m.MethodName)
	}
	for i := range d.Streams {
		s := &d.Streams[i]
		s.Handler = r.stream(s.Handler, "/"+desc.ServiceName+"/"+s.StreamName)
	}
	r.Server.RegisterService(&d, impl)
}

func (r registrar) unary(handle grpc.MethodHandler, method string) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, theirs grpc.UnaryServerInterceptor) (any, error) {
		ctx, err := r.admit(ctx)
		if err != nil {
			return nil, err
		}
		recv := func(msg any) error { return receive(ctx, method, dec, msg) }
		if _, ours := peerOf(ctx); !ours {
			recv = dec // a server without Options has a codec of its own
		}
		return handle(srv, ctx, recv, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			ours := func(ctx context.Context, req any) (answer any, err error) {
				err = around(ctx, method, func() (err error) {
					answer, err = handle(ctx, req)
					return err
				})
				return answer, err
			}
			if theirs == nil {
				return ours(ctx, req)
			}
			return theirs(ctx, req, info, ours)
		})
	}
}

// stream leaves a stream's context as it is: none acts for its caller.
func (r registrar) stream(handle grpc.StreamHandler, method string) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		if _, err := r.admit(stream.Context()); err != nil {
			return err
		}
		return around(stream.Context(), method, func() error { return handle(srv, stream) })
	}
}

// notOffered is a grpc.StreamHandler for the methods of services that are not registered.
func (r registrar) notOffered(srv any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return r.stream(func(any, grpc.ServerStream) error { return toStatus(errNotOffered) }, method)(srv, stream)
}
