package healerpb_test

import (
	"bytes"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// field is what the specification fixes of a field.
type field struct {
	number protoreflect.FieldNumber
	name   protoreflect.Name
	// typ is a scalar kind, a message's full name, or map<K, V>.
	typ    string
	secret bool
}

func TestFieldsAreThoseOfTheSpecification(t *testing.T) {
	tests := []struct {
		message proto.Message
		name    protoreflect.FullName
		fields  []field
	}{
		{
			message: &healerpb.NodeHealerRequest{},
			name:    "healer.NodeHealerRequest",
			fields: []field{
				{number: 1, name: "volume_id", typ: "string"},
				{number: 2, name: "volume_path", typ: "string"},
				{number: 3, name: "staging_target_path", typ: "string"},
				{number: 4, name: "volume_capability", typ: "csi.v1.VolumeCapability"},
				{number: 5, name: "secrets", typ: "map<string, string>", secret: true},
				{number: 6, name: "volume_context", typ: "map<string, string>"},
			},
		},
		{
			message: &healerpb.NodeHealerResponse{},
			name:    "healer.NodeHealerResponse",
			fields: []field{
				{number: 1, name: "abnormal", typ: "bool"},
				{number: 2, name: "message", typ: "string"},
			},
		},
	}
	for _, test := range tests {
		t.Run(string(test.name), func(t *testing.T) {
			desc := test.message.ProtoReflect().Descriptor()
			if desc.FullName() != test.name {
				t.Errorf("full name is %s", desc.FullName())
			}
			if have, want := desc.Fields().Len(), len(test.fields); have != want {
				t.Errorf("%d fields, want %d", have, want)
			}
			if n := desc.Oneofs().Len(); n != 0 {
				t.Errorf("%d oneofs (or optional fields), want none", n)
			}
			for _, want := range test.fields {
				fd := desc.Fields().ByNumber(want.number)
				if fd == nil {
					t.Errorf("no field %d (%s)", want.number, want.name)
					continue
				}
				have := field{number: fd.Number(), name: fd.Name(), typ: typeOf(fd), secret: isSecret(fd)}
				if have != want {
					t.Errorf("field is %+v, want %+v", have, want)
				}
			}
		})
	}
}

func typeOf(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.IsMap():
		return "map<" + typeOf(fd.MapKey()) + ", " + typeOf(fd.MapValue()) + ">"
	case fd.IsList():
		return "repeated " + fd.Kind().String()
	case fd.Message() != nil:
		return string(fd.Message().FullName())
	default:
		return fd.Kind().String()
	}
}

func isSecret(fd protoreflect.FieldDescriptor) bool {
	secret, _ := proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool)
	return secret
}

func TestServiceIsThatOfTheSpecification(t *testing.T) {
	services := healerpb.File_github_com_csi_addons_node_healer_pkg_api_healerpb_healer_proto.Services()
	if services.Len() != 1 {
		t.Fatalf("%d services, want 1", services.Len())
	}
	service := services.Get(0)
	if service.FullName() != "healer.HealerNode" {
		t.Errorf("service is %s", service.FullName())
	}
	if service.Methods().Len() != 1 {
		t.Fatalf("%d methods, want 1", service.Methods().Len())
	}
	method := service.Methods().Get(0)
	if method.Name() != "NodeHealer" ||
		method.Input().FullName() != "healer.NodeHealerRequest" ||
		method.Output().FullName() != "healer.NodeHealerResponse" ||
		method.IsStreamingClient() || method.IsStreamingServer() {
		t.Errorf("method is %v", method)
	}
	if healerpb.HealerNode_NodeHealer_FullMethodName != "/healer.HealerNode/NodeHealer" {
		t.Errorf("path is %s", healerpb.HealerNode_NodeHealer_FullMethodName)
	}
}

// str, sub and entry append a string, a message and an entry of a map to a message's bytes.
func str(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func sub(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func entry(key, value string) []byte { return str(str(nil, 1, key), 2, value) }

// The bytes are put together by hand, without the stubs.
func TestBytesAreThoseOfTheSpecification(t *testing.T) {
	capability := sub(nil, 2, str(nil, 1, "ext4")) // mount{fs_type}
	request := str(nil, 1, "vol-1")
	request = str(request, 2, "/pub")
	request = str(request, 3, "/stage")
	request = sub(request, 4, capability)
	request = sub(request, 5, entry("user", "u"))
	request = sub(request, 6, entry("pool", "p"))
	response := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	response = str(response, 2, "abnormal: why")

	tests := map[string]struct {
		message proto.Message
		want    []byte
	}{
		"request": {
			message: &healerpb.NodeHealerRequest{
				VolumeId:          "vol-1",
				VolumePath:        "/pub",
				StagingTargetPath: "/stage",
				VolumeCapability: &csi.VolumeCapability{
					AccessType: &csi.VolumeCapability_Mount{
						Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"},
					},
				},
				Secrets:       map[string]string{"user": "u"},
				VolumeContext: map[string]string{"pool": "p"},
			},
			want: request,
		},
		"response": {
			message: &healerpb.NodeHealerResponse{Abnormal: true, Message: "abnormal: why"},
			want:    response,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			have, err := proto.MarshalOptions{Deterministic: true}.Marshal(test.message)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(have, test.want) {
				t.Errorf("bytes are\n%x, want\n%x", have, test.want)
			}
			back := test.message.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(test.want, back); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(back, test.message) {
				t.Errorf("read back: %v, want %v", back, test.message)
			}
		})
	}
}

// Server reflection looks every import up by its name in the global registry.
// One that is registered under another name leaves a client with half a
// schema. This walks the imports as a reflection client does.
func TestReflectionCanServeTheWholeClosure(t *testing.T) {
	const file = "github.com/csi-addons/node-healer/pkg/api/healerpb/healer.proto"
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		fd, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			t.Errorf("%s is not registered: %v", path, err)
			return
		}
		for i := range fd.Imports().Len() {
			imported := fd.Imports().Get(i)
			if imported.IsPlaceholder() {
				t.Errorf("%s imports %s, which is not linked in", path, imported.Path())
			}
			visit(imported.Path())
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(fd))
	}
	visit(file)
	if !seen["csi.proto"] {
		t.Error("csi.proto is not among the imports")
	}

	// The client's side: with nothing but what was served.
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatalf("the closure does not resolve: %v", err)
	}
	for _, name := range []protoreflect.FullName{
		"healer.HealerNode",
		"healer.NodeHealerRequest",
		"csi.v1.VolumeCapability",
		"csi.v1.csi_secret",
	} {
		if _, err := files.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
