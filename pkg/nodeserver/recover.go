package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// errPanicked is all that a caller learns of a panic.
var errPanicked = errors.New("internal error, see the log of the server")

// guarded calls f and turns a panic into errPanicked, with the stack in the
// log. The panic's own value is logged only when the runtime made it: any other
// may hold a part of the request.
func guarded(ctx context.Context, method string, f func() error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		what := fmt.Sprintf("a value of type %T", p)
		var fault runtime.Error
		if e, ok := p.(error); ok && errors.As(e, &fault) {
			what = oneLine(fault.Error(), logTextBytes)
		}
		klog.FromContext(ctx).Error(errPanicked, "Panic", keyMethod, method, keyPanic, what, keyStack, string(debug.Stack()))
		err = errPanicked
	}()
	return f()
}

func recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	err = guarded(ctx, info.FullMethod, func() (err error) {
		resp, err = handle(ctx, req)
		return err
	})
	return resp, panicStatus(err)
}

func recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return panicStatus(guarded(stream.Context(), info.FullMethod, func() error { return handle(srv, stream) }))
}

func panicStatus(err error) error {
	if errors.Is(err, errPanicked) {
		return status.Error(codes.Unknown, errPanicked.Error())
	}
	return err
}
