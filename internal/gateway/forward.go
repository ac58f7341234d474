package gateway

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
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

// methods are those that the CSI-Addons controller and ours call. They are passed on, and
// no other: none is a stream, which would hold the connection to the server for as long
// as its caller likes.
var methods = []string{
	healerpb.HealerNode_NodeHealer_FullMethodName,
	identity.Identity_GetIdentity_FullMethodName,
	identity.Identity_GetCapabilities_FullMethodName,
	identity.Identity_Probe_FullMethodName,
	csi.Node_NodeGetVolumeHealth_FullMethodName,
}

// reflectionMethod is answered here, from the descriptors that this program is built with.
const reflectionMethod = reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName

// services has the names that reflection lists: those of the methods.
type services []string

func (s services) GetServiceInfo() map[string]grpc.ServiceInfo {
	names := map[string]grpc.ServiceInfo{}
	for _, method := range s {
		names[strings.Split(method, "/")[1]] = grpc.ServiceInfo{}
	}
	return names
}

// newReflection answers about methods and reflection itself.
func newReflection() reflectionv1.ServerReflectionServer {
	return reflection.NewServerV1(reflection.ServerOptions{Services: services(append(methods[:len(methods):len(methods)], reflectionMethod))})
}

// limitTime is a tap.ServerInHandle: a call ends at the latest then, however much of it
// was authorized, received and answered.
func limitTime(ctx context.Context, call *tap.Info) (context.Context, error) {
	timeout := callTimeout
	if call.FullMethodName == reflectionMethod {
		timeout = reflectionTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	context.AfterFunc(ctx, cancel) // gRPC ends ctx with the call
	return context.WithValue(limited, endKey{}, cancel), nil
}

// endKey is that of the function which ends a call.
type endKey struct{}

// receive receives the whole request of a call, which ends if that takes too long: what
// was received of it takes memory meanwhile.
func receive(in grpc.ServerStream) (request []byte, err error) {
	if end, ok := in.Context().Value(endKey{}).(context.CancelFunc); ok {
		defer time.AfterFunc(receiveTimeout, end).Stop()
	}
	if err = in.RecvMsg(&request); errors.Is(err, io.EOF) {
		err = operationFailed.status("a call without a request")
	}
	return request, err
}

// serve is a grpc.StreamHandler for every method. It authorizes the caller before it
// receives anything of a request.
func (g *Gateway) serve(_ any, in grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return operationFailed.status("a call without a method")
	}
	who, err := g.callers.authorizeCall(in.Context(), method)
	if err != nil {
		refusals.Do(func() {
			klog.InfoS("Caller refused", keySource, sourceOf(in.Context()), keyMethod, printable.Line(method, maxTextBytes), keyError, err.Error())
		})
		return refused(err)
	}
	switch {
	case method == reflectionMethod:
		err = g.reflect(in)
	case slices.Contains(methods, method):
		err = g.passOn(in, method, who)
	default:
		err = methodNotOffered.status("this server does not offer the method")
	}
	klog.V(verbosityCalls).InfoS("Call", keyCaller, who.name, keyVerb, who.verb, keyMethod, printable.Line(method, maxTextBytes), keyCode, status.Code(err))
	return err
}

func sourceOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// reflect answers about the methods, to some callers at once.
func (g *Gateway) reflect(in grpc.ServerStream) error {
	if !g.reflections.TryAcquire(1) {
		return nodeHealerUnreachable.status("too many callers use reflection now: try again")
	}
	defer g.reflections.Release(1)
	return g.reflection.ServerReflectionInfo(&grpc.GenericServerStream[reflectionv1.ServerReflectionRequest, reflectionv1.ServerReflectionResponse]{ServerStream: in})
}

// passOn receives a whole request before it asks the server, and nothing of the caller's
// own metadata goes with it.
func (g *Gateway) passOn(in grpc.ServerStream, method string, who caller) error {
	request, err := receive(in)
	if err != nil {
		return err
	}
	got, err := g.ask(in.Context(), method, request, who)
	if err != nil {
		return passed(err)
	}
	for _, key := range []string{healerpb.TrailerMessage, healerpb.TrailerConditions} {
		in.SetTrailer(metadata.MD{key: got.trailer.Get(key)})
	}
	return in.SendMsg(&got.message)
}

// answer is what the server said.
type answer struct {
	message []byte
	trailer metadata.MD
	err     error
}

// ask waits for one of the calls that those with the same verb may have open, so that
// those who may only check keep no heal waiting. The server works on when a caller leaves, so
// the call stays open until the server has answered: its connection takes no more than these.
func (g *Gateway) ask(ctx context.Context, method string, request []byte, who caller) (answer, error) {
	calls, answered := g.calls[who.verb], make(chan answer, 1)
	if err := calls.Acquire(ctx, 1); err != nil {
		return answer{}, status.FromContextError(err).Err()
	}
	g.asking.Go(func() {
		defer calls.Release(1)
		var got answer
		got.err = g.server.Invoke(who.as(context.WithoutCancel(ctx)), method, &request, &got.message, grpc.ForceCodecV2(rawCodec{}), grpc.Trailer(&got.trailer))
		answered <- got
	})
	select {
	case got := <-answered:
		return got, got.err
	case <-ctx.Done():
		return answer{}, status.FromContextError(ctx.Err()).Err()
	}
}

// as returns a context in which the server is called for c.
func (c caller) as(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(forwarded.Caller, c.name, forwarded.Verb, c.verb))
}

// rawCodec is an encoding.CodecV2 that leaves messages undecoded where they are taken as
// bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if message, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*message)}, nil
	}
	return encoding.GetCodecV2(grpcproto.Name).Marshal(v)
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if message, ok := v.(*[]byte); ok {
		*message = data.Materialize()
		return nil
	}
	return encoding.GetCodecV2(grpcproto.Name).Unmarshal(data, v)
}

// Name implements encoding.CodecV2: callers and server send protobuf.
func (rawCodec) Name() string { return grpcproto.Name }
