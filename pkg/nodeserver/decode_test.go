package nodeserver

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
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
			err := s.conn.Invoke(testContext(t), healerpb.HealerNode_NodeHealer_FullMethodName, raw, &healerpb.NodeHealerResponse{}, grpc.ForceCodecV2(rawCodec{}))
			if status.Code(err) != codes.Internal || strings.Contains(err.Error(), canary) {
				t.Errorf("got %v", err)
			}
		})
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
	if strings.Contains(logged(), canary) {
		t.Errorf("the log shows what was sent:\n%s", logged())
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
