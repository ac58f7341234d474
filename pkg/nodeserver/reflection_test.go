package nodeserver

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// describe does what a client without proto files does: it asks for the files
// of a symbol, then for whatever these import, and resolves all of it.
func describe(t *testing.T, s *served, symbol string) *descriptorpb.FileDescriptorSet {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.CloseSend() }()
	known := map[string]*descriptorpb.FileDescriptorProto{}
	ask := func(req *reflectionv1.ServerReflectionRequest) {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetFileDescriptorResponse() == nil {
			t.Fatalf("%v: got %v", req, resp)
		}
		for _, raw := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
			var f descriptorpb.FileDescriptorProto
			if err := proto.Unmarshal(raw, &f); err != nil {
				t.Fatal(err)
			}
			known[f.GetName()] = &f
		}
	}
	ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}})
	for asked := true; asked; {
		asked = false
		for _, f := range known {
			for _, dep := range f.GetDependency() {
				if known[dep] == nil {
					ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: dep}})
					asked = true
				}
			}
		}
	}
	var set descriptorpb.FileDescriptorSet
	for _, f := range known {
		set.File = append(set.File, f)
	}
	return &set
}

func TestReflectionIsComplete(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	set := describe(t, s, "healer.NodeHealerRequest")
	if size := proto.Size(set); size > maxResponseBytes/2 {
		t.Errorf("the files take %d bytes, the limit of a response is %d", size, maxResponseBytes)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []protoreflect.FullName{"healer.HealerNode", "csi.v1.VolumeCapability", "csi.v1.csi_secret", "google.protobuf.FieldOptions"} {
		if _, err := files.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := files.FindFileByPath("google/protobuf/descriptor.proto"); err != nil {
		t.Error(err)
	}
	request, err := files.FindDescriptorByName("healer.NodeHealerRequest")
	if err != nil {
		t.Fatal(err)
	}
	if got := request.(protoreflect.MessageDescriptor).Fields().ByName("volume_capability").Message().FullName(); got != "csi.v1.VolumeCapability" {
		t.Errorf("volume_capability is a %s", got)
	}
	for _, service := range []protoreflect.FullName{"identity.Identity", "csi.v1.Identity", "csi.v1.Node"} {
		files, err := protodesc.NewFiles(describe(t, s, string(service)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := files.FindDescriptorByName(service); err != nil {
			t.Error(err)
		}
	}
}

func TestReflectionLists(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	want := []string{
		"csi.v1.Identity", "csi.v1.Node", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
		"healer.HealerNode", "identity.Identity",
	}
	// The messages of v1alpha, which older clients ask for, are those of v1.
	stream, err := s.conn.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	var resp reflectionv1.ServerReflectionResponse
	if err := stream.RecvMsg(&resp); err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	var got []string
	for _, service := range resp.GetListServicesResponse().GetService() {
		got = append(got, service.GetName())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
