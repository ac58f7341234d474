package controller

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

const (
	// maxAnswerBytes bounds an answer, a message and its frame, and as much beside it.
	maxAnswerBytes = 256 << 10
	// routeTimeout bounds the questions to the API before a call.
	routeTimeout = 15 * time.Second
)

// reasonUnjudged is pkg/healer's ReasonUnjudged: nothing is known to be wrong.
const reasonUnjudged = "Unjudged"

// call asks a node about a volume once. The timeout is for the call alone.
func (g *gateways) call(ctx context.Context, node string, mode v1alpha1.Mode, req *healerpb.NodeHealerRequest, timeout time.Duration) outcome {
	finding, done := context.WithTimeout(ctx, routeTimeout)
	defer done()
	if err := g.nodeReady(finding, node); err != nil {
		return hindered(ReasonNodeNotReady, passing, "%v", err)
	}
	address, annotations, err := g.registered(finding, node)
	if err != nil {
		return hindered(ReasonGatewayNotRegistered, changing, "no gateway is registered in namespace %s for node %s that can be called: %v", g.Namespace, node, err)
	}
	config, err := g.Trust.config(annotations)
	if err != nil {
		return hindered(ReasonGatewayUnreachable, changing, "the gateway of node %s cannot be verified: %v", node, err)
	}
	token, err := g.makeToken(finding, node)
	if err != nil {
		return hindered(ReasonTokenNotMade, passing, "make a token for the gateway of node %s: %v", node, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithPerRPCCredentials(token),
		grpc.WithNoProxy(), // pods are in the cluster
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(maxAnswerBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return failed(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var o outcome
	if mode == v1alpha1.ModeHeal {
		var answer *healerpb.NodeHealerResponse
		answer, err = healerpb.NewHealerNodeClient(conn).NodeHealer(ctx, req)
		o = answered(answer.GetAbnormal(), answer.GetMessage())
	} else {
		o, err = check(ctx, conn, req)
	}
	if err != nil {
		return failed(err)
	}
	return o
}

// check uses CSI's own call, which heals nothing whatever the caller may do:
// NodeHealerRequest has no mode.
func check(ctx context.Context, conn grpc.ClientConnInterface, req *healerpb.NodeHealerRequest) (outcome, error) {
	var trailer metadata.MD
	answer, err := csi.NewNodeClient(conn).NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{
		VolumeId: req.GetVolumeId(), VolumePublishPath: req.GetVolumePath(), StagingTargetPath: req.GetStagingTargetPath(),
	}, grpc.Trailer(&trailer))
	entries := answer.GetVolumeHealth().GetHealthStatuses()
	if len(entries) == 0 {
		return answered(false, "healthy"), err
	}
	cures := curesIn(trailer)
	said, found := make([]string, 0, len(entries)), []finding{}
	verdict := "not judged: "
	for _, entry := range entries {
		said = append(said, entry.GetReason()+": "+entry.GetMessage())
		if len(cures[entry.GetReason()]) == 0 {
			found = append(found, finding{reason: entry.GetReason(), message: entry.GetMessage()})
		}
		for _, c := range cures[entry.GetReason()] {
			found = append(found, finding{entry.GetReason(), entry.GetMessage(), c.NewStage, types.UID(c.NewPod)})
		}
		if all := cures[entry.GetReason()]; len(all) > 1 {
			cures[entry.GetReason()] = all[:1] // a node that was taken over would multiply entries of one reason by its cures
		}
		if entry.GetReason() != reasonUnjudged {
			verdict = "abnormal: "
		}
	}
	o := answered(true, verdict+strings.Join(said, "; "))
	o.found = found
	return o, err
}

// curesIn returns, by reason, what the node says beside an answer. One of another version says
// nothing: then nobody knows what ends a condition.
func curesIn(trailer metadata.MD) map[string][]healerpb.Condition {
	byReason := map[string][]healerpb.Condition{}
	for _, text := range trailer.Get(healerpb.TrailerConditions) {
		var all []healerpb.Condition
		if json.Unmarshal([]byte(text), &all) != nil {
			return nil
		}
		for _, c := range all {
			byReason[c.Reason] = append(byReason[c.Reason], c)
		}
	}
	return byReason
}
