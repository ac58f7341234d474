package nodeserver

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNotOffered is the error of a method that this server does not have in any mode: it
// is no CSI driver, and stages and publishes nothing.
var errNotOffered = errors.New("this server does not offer the method")

// detailUnoffered is a grpc.UnaryServerInterceptor. The methods that generated code
// answers for us (csi.UnimplementedNodeServer) have no details, by which a program could
// tell them from those that --mode=off turns off.
func detailUnoffered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	if s := status.Convert(err); s.Code() == codes.Unimplemented && len(s.Proto().GetDetails()) == 0 {
		return nil, toStatus(errNotOffered)
	}
	return resp, err
}

// notOffered is a grpc.StreamHandler for the methods of services that are not registered.
func notOffered(any, grpc.ServerStream) error { return toStatus(errNotOffered) }
