package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// The keys of this package's log lines.
const (
	keyCaller = "caller"
	keyVerb   = "verb"
	keyMethod = "method"
	keySource = "source"
	keyError  = "error"
	keyCode   = "code"
)

// verbosityCalls is klog's -v from which each call shows.
const verbosityCalls = 4

// refusalsGap is the time between two lines of the log that unauthenticated callers can
// cause.
const refusalsGap = 10 * time.Second

// refusals keeps unauthenticated callers from filling the log.
var refusals = rate.Sometimes{Interval: refusalsGap}

// forward is a grpc.StreamHandler for every method. It authorizes the caller before it
// receives anything of a request, and passes none of the caller's own metadata on.
func (g *Gateway) forward(_ any, in grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return operationFailed.status("a call without a method")
	}
	who, err := g.callers.authorize(in.Context(), method)
	if err != nil {
		refusals.Do(func() {
			klog.InfoS("Caller refused", keySource, sourceOf(in.Context()), keyMethod, printable.Line(method, maxTextBytes), keyError, err.Error())
		})
		return refused(err)
	}
	err = g.passOn(in, method, who)
	klog.V(verbosityCalls).InfoS("Call", keyCaller, who.name, keyVerb, who.verb, keyMethod, printable.Line(method, maxTextBytes), keyCode, status.Code(err))
	return err
}

func sourceOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// as returns a context in which the server is called for c.
func (c caller) as(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(forwarded.Caller, c.name, forwarded.Verb, c.verb))
}

// passOn copies messages both ways until the server has answered.
func (g *Gateway) passOn(in grpc.ServerStream, method string, who caller) error {
	ctx, cancel := context.WithCancelCause(who.as(in.Context()))
	defer cancel(nil)
	out, err := g.server.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return passed(err)
	}
	// It ends after this handler has returned, when gRPC ends the stream; Run waits for it.
	g.receivers.Go(func() {
		if err := receiveAll(in, out); err != nil {
			cancel(err)
		}
	})
	for {
		var message []byte
		err := out.RecvMsg(&message)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && in.Context().Err() == nil && ctx.Err() != nil:
			return context.Cause(ctx) // the request could not be received; gRPC has answered that
		case err != nil:
			return passed(err)
		}
		if err := in.SendMsg(&message); err != nil {
			return err
		}
	}
}

// receiveAll passes requests on until there are no more. It returns no error of
// sending: out.RecvMsg returns that.
func receiveAll(in grpc.ServerStream, out grpc.ClientStream) error {
	for {
		var message []byte
		err := in.RecvMsg(&message)
		switch {
		case errors.Is(err, io.EOF):
			return out.CloseSend()
		case err != nil:
			return err
		}
		if out.SendMsg(&message) != nil {
			return nil
		}
	}
}

// rawCodec is an encoding.CodecV2 that leaves messages undecoded.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("gateway: a message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*message)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("gateway: a message of type %T", v)
	}
	*message = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2: callers and server send protobuf.
func (rawCodec) Name() string { return grpcproto.Name }
