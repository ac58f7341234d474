package bench

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// dial connects to a server.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// healthy calls for a volume and takes everything but healthy for an error: a
// wrong answer must not count as a fast one.
func healthy(c grpc.ClientConnInterface, r *healerpb.NodeHealerRequest) error {
	a, err := healerpb.NewHealerNodeClient(c).NodeHealer(context.Background(), r)
	if err != nil {
		return fmt.Errorf("NodeHealer: %w", err)
	}
	if a.GetAbnormal() {
		return fmt.Errorf("a healthy volume is called %s", a.GetMessage())
	}
	return nil
}

// encode and decode take requests to an agent.
func encode(t testing.TB, r *healerpb.NodeHealerRequest) []byte {
	t.Helper()
	raw, err := proto.Marshal(r)
	harness.Must(t, err)
	return raw
}

func decode(raw [][]byte) ([]*healerpb.NodeHealerRequest, error) {
	requests := make([]*healerpb.NodeHealerRequest, len(raw))
	for i, r := range raw {
		requests[i] = &healerpb.NodeHealerRequest{}
		if err := proto.Unmarshal(r, requests[i]); err != nil {
			return nil, err
		}
	}
	return requests, nil
}
