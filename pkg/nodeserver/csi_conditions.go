package nodeserver

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// tellCures says beside an answer what ends each condition. The controller evicts pods only
// where that ends all of them. What is too long for a trailer is not said: a client would
// refuse the whole answer, and pods are not evicted for a part of it.
func tellCures(ctx context.Context, d healer.Diagnosis) {
	var cures []healerpb.Condition
	for _, c := range d.Cures() {
		cures = append(cures, healerpb.Condition{Reason: printable.Line(string(c.Reason), maxReasonBytes), NewStage: c.NewStage, NewPod: c.NewPod})
	}
	if text, err := json.Marshal(cures); err == nil && len(d.Conditions) > 0 && len(text) <= maxFullBytes {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(healerpb.TrailerConditions, string(text))) // a call without a stream has none
	}
}
