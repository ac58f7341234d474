package nodeserver

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// TestUnknownMethodIsForgotten: the time that a call's message may take, and with it the call's
// memory, does not outlive a call that is answered without one.
func TestUnknownMethodIsForgotten(t *testing.T) {
	ctx := receiving(t.Context())
	if err := notOffered(nil, &contextStream{ctx: ctx}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if ctx.Value(receivingKey{}).(*time.Timer).Stop() {
		t.Error("the timer still ran")
	}
}

// TestCallWithoutARequestEnds: a caller that begins a call and does not send its request
// is not waited for; one whose volume takes longer than that is.
func TestCallWithoutARequestEnds(t *testing.T) {
	h := &fakeHealer{during: func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(receiveTimeout + time.Second/2):
		}
		if ctx.Err() != nil {
			t.Errorf("a call that works was ended: %v", ctx.Err())
		}
	}}
	s := serve(t, testConfig(h))
	stream, err := s.conn.NewStream(testContext(t), &grpc.StreamDesc{ClientStreams: true}, healerpb.HealerNode_NodeHealer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&healerpb.NodeHealerResponse{}); status.Code(err) != codes.Canceled {
		t.Errorf("without a request: %v", err)
	}
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
		t.Errorf("a call that takes long: %v", err)
	}
}
