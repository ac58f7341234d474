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

	"github.com/csi-addons/node-healer/internal/printable"
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

// Unmarshal implements encoding.CodecV2.
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
	received(ctx)
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
	// unguarded admits a call that peerGuard did not see; nil: there is none.
	unguarded func(context.Context) (context.Context, error)
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
		s.Handler = aroundStream(s.Handler, "/"+desc.ServiceName+"/"+s.StreamName)
	}
	r.Server.RegisterService(&d, impl)
}

func (r registrar) unary(handle grpc.MethodHandler, method string) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, theirs grpc.UnaryServerInterceptor) (any, error) {
		recv := func(msg any) error { return receive(ctx, method, dec, msg) }
		if r.unguarded != nil && !guarded(ctx) {
			admitted, err := r.unguarded(ctx)
			if err != nil {
				klog.FromContext(ctx).Info("Call refused", keyMethod, method, keyError, printable.Line(err.Error(), logTextBytes))
				return nil, err
			}
			ctx, recv = admitted, dec // that server has a codec of its own
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
