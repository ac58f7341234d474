package csidriver

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// register serves kubelet's pluginregistration.Registration
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1), which usually a sidecar of
// its own does. Two calls are not worth that module: their messages are written
// and read by field number, as an empty message with unknown fields.
func register(server *grpc.Server, d Driver) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "pluginregistration.Registration",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method("GetInfo", func([]byte) []byte { return pluginInfo(d) }),
			method("NotifyRegistrationStatus", func(status []byte) []byte {
				fmt.Fprintf(os.Stderr, "kubelet registered the driver: %q\n", status)
				return nil
			}),
		},
	}, nil)
}

// pluginInfo is the message PluginInfo.
func pluginInfo(d Driver) []byte {
	const kind, name, address, versions = 1, 2, 3, 4
	var raw []byte
	for _, field := range []struct {
		number protowire.Number
		value  string
	}{{kind, "CSIPlugin"}, {name, d.name()}, {address, d.Socket()}, {versions, "1.0.0"}} {
		raw = protowire.AppendTag(raw, field.number, protowire.BytesType)
		raw = protowire.AppendString(raw, field.value)
	}
	return raw
}

// method is a call whose messages are taken as they are on the wire.
func method(name string, answer func(request []byte) []byte) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request, response emptypb.Empty
			if err := decode(&request); err != nil {
				return nil, err
			}
			response.ProtoReflect().SetUnknown(answer(request.ProtoReflect().GetUnknown()))
			return &response, nil
		},
	}
}
