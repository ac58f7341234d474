package nodeserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
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

func newTolerantCodec() tolerantCodec {
	return tolerantCodec{encoding.GetCodecV2(grpcproto.Name)}
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
	name := "a protobuf message"
	if m, ok := msg.(proto.Message); ok {
		name = string(m.ProtoReflect().Descriptor().FullName())
	}
	err = toStatus(&healer.Error{Kind: healer.KindInvalid, Text: "the request cannot be decoded as " + name})
	// The interceptors do not run for this call.
	klog.FromContext(ctx).Info("Call refused", keyMethod, method, keyCode, codes.InvalidArgument.String(), keyError, "cannot be decoded as "+name)
	return err
}

// registrar registers services with handlers of unary calls that receive through
// envelopes: the streams, of health and reflection, have no codes of the contract.
type registrar struct {
	*grpc.Server
}

// RegisterService implements grpc.ServiceRegistrar. It changes a copy of the generated
// description.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		d.Methods[i] = tolerantMethod(m, "/"+desc.ServiceName+"/"+m.MethodName)
	}
	r.Server.RegisterService(&d, impl)
}

func tolerantMethod(m grpc.MethodDesc, method string) grpc.MethodDesc {
	handle := m.Handler
	m.Handler = func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		return handle(srv, ctx, func(msg any) error { return receive(ctx, method, dec, msg) }, i)
	}
	return m
}
