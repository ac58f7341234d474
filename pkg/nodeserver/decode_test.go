package nodeserver

import (
	"errors"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// rawCodec sends bytes as they are and calls them protobuf.
type rawCodec struct{}

func (rawCodec) Name() string { return grpcproto.Name }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	raw, ok := v.([]byte)
	if !ok {
		return nil, errors.New("not bytes")
	}
	return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(grpcproto.Name).Unmarshal(data, v)
}

func TestUndecodable(t *testing.T) {
	logged := captureLog(t, "10")
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	good, err := proto.Marshal(goodRequest())
	if err != nil {
		t.Fatal(err)
	}
	secretEntry := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), canary+"\xff")
	for name, raw := range map[string][]byte{
		"invalid UTF-8":              protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), canary+"\xff"),
		"invalid UTF-8 in a secret":  protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), secretEntry),
		"a length beyond the end":    append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), 1000), canary...),
		"cut in the middle":          good[:len(good)-3],
		"a tag without a value":      append(good[:len(good):len(good)], 0x0a),
		"field number 0":             {0x02, 0x00},
		"a varint without an end":    {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"an end of no group":         {0x0c},
		"a message that is no bytes": append(protowire.AppendTag(nil, 4, protowire.BytesType), 0x02, 0x0a, 0x7f),
	} {
		t.Run(name, func(t *testing.T) {
			for method, message := range map[string]string{
				healerpb.HealerNode_NodeHealer_FullMethodName: "healer.NodeHealerRequest",
			} {
				got := status.Convert(s.conn.Invoke(testContext(t), method, raw, &healerpb.NodeHealerResponse{}, grpc.ForceCodecV2(rawCodec{})))
				if got.Code() != codes.InvalidArgument || got.Message() != "the request cannot be decoded as "+message {
					t.Errorf("%s: got %v %q", method, got.Code(), got.Message())
				}
			}
		})
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
	if strings.Contains(logged(), canary) {
		t.Errorf("the log shows what was sent:\n%s", logged())
	}
	if !strings.Contains(logged(), `code="InvalidArgument"`) {
		t.Errorf("no line in the log:\n%s", logged())
	}
}

func TestUndecodableInOtherServices(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	garbage := []byte{0x0a, 0x7f}
	for method, message := range map[string]string{
		identity.Identity_GetIdentity_FullMethodName:     "identity.GetIdentityRequest",
		identity.Identity_GetCapabilities_FullMethodName: "identity.GetCapabilitiesRequest",
		identity.Identity_Probe_FullMethodName:           "identity.ProbeRequest",
		grpc_health_v1.Health_Check_FullMethodName:       "grpc.health.v1.HealthCheckRequest",
	} {
		got := status.Convert(s.conn.Invoke(testContext(t), method, garbage, &identity.ProbeResponse{}, grpc.ForceCodecV2(rawCodec{})))
		if got.Code() != codes.InvalidArgument || !strings.HasSuffix(got.Message(), " as "+message) {
			t.Errorf("%s: got %v", method, got)
		}
	}
}

// A wrong wire type is an unknown field to protobuf, so the field is missing.
func TestWrongWireTypeIsAMissingField(t *testing.T) {
	s := serve(t, testConfig(&fakeHealer{}))
	raw := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7)
	err := s.conn.Invoke(testContext(t), healerpb.HealerNode_NodeHealer_FullMethodName, raw, &healerpb.NodeHealerResponse{}, grpc.ForceCodecV2(rawCodec{}))
	if got := status.Convert(err); got.Code() != codes.InvalidArgument || got.Message() != "volume_id: is required" {
		t.Errorf("got %v", got)
	}
}
