package driver

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// A driver's directory may have another name than the driver.
func TestRegisteredSocket(t *testing.T) {
	const elsewhere = "/var/lib/kubelet/plugins/csi-plugin/csi.sock"
	for name, tc := range map[string]struct {
		info  []string
		found bool
	}{
		"registered":     {[]string{"CSIPlugin", driverName, elsewhere}, true},
		"another driver": {[]string{"CSIPlugin", "other", elsewhere}, false},
		"another plugin": {[]string{"DevicePlugin", driverName, elsewhere}, false},
		"outside":        {[]string{"CSIPlugin", driverName, "/run/csi.sock"}, false},
		"not clean":      {[]string{"CSIPlugin", driverName, "/var/lib/kubelet/../../run/csi.sock"}, false},
		"nothing":        {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			p := f.serve(t)
			sockets := p.tools.(*providertest.Tools).Sockets
			sockets[elsewhere] = sockets[csiSocket]
			delete(sockets, csiSocket)
			sockets["/var/lib/kubelet/plugins_registry/d.example.com-reg.sock"] = listen(t, func(s *grpc.Server) { register(s, tc.info) })
			for range 2 {
				if e := collect(t, p, healthy()); (e.NotAsked == "") != tc.found {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// register serves kubelet's question, with a PluginInfo of these fields.
func register(s *grpc.Server, fields []string) {
	var raw []byte
	for i, field := range fields {
		raw = protowire.AppendString(protowire.AppendTag(raw, protowire.Number(i+1), protowire.BytesType), field)
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "pluginregistration.Registration", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "GetInfo", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request, response emptypb.Empty
			if err := decode(&request); err != nil {
				return nil, err
			}
			response.ProtoReflect().SetUnknown(raw)
			return &response, nil
		}}},
	}, nil)
}
