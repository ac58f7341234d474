package nodeserver

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// NodeHealer implements healerpb.HealerNodeServer.
func (s *Server) NodeHealer(ctx context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	started := time.Now()
	logger := klog.FromContext(ctx).WithValues(keyVolumeID, oneLine(req.GetVolumeId(), maxVolumeIDBytes), keyCaller, healer.CallerOf(ctx))
	report, err := s.heal(klog.NewContext(ctx, logger), req)
	if err != nil {
		err = toStatus(ctx, err, req.GetSecrets())
		logHeal(logger, time.Since(started), err, nil)
		return nil, err
	}
	logHeal(logger, time.Since(started), nil, &report)
	abnormal, text := message(report)
	s.tell(report)
	return &healerpb.NodeHealerResponse{Abnormal: abnormal, Message: text}, nil
}

func (s *Server) heal(ctx context.Context, req *healerpb.NodeHealerRequest) (healer.Report, error) {
	if s.cfg.Off {
		return healer.Report{}, &healer.Error{Kind: healer.KindDisabled, Text: "this server was told not to offer NodeHealer (--mode=off)"}
	}
	v, err := s.rules.volume(req)
	if err != nil {
		return healer.Report{}, err
	}
	if !s.calls.enter() {
		return healer.Report{}, errDraining
	}
	defer s.calls.leave()

	do := s.cfg.Healer.Heal
	if onlyChecks(ctx) {
		do = s.cfg.Healer.Check
	}
	var report healer.Report
	// Caught here and not only by the interceptor, so that this call too has
	// its line in the log.
	err = guarded(ctx, healerpb.HealerNode_NodeHealer_FullMethodName, func() (err error) {
		report, err = do(ctx, v)
		return err
	})
	// What must not show in the answer is what came with the request, whatever
	// a healer put into its report.
	report.Volume = v
	return report, err
}

// tell passes an answer on, if more than the caller's word says that all of it is
// the volume's: others will read it.
func (s *Server) tell(r healer.Report) {
	if s.cfg.Noted != nil && r.After.Case.Proven() {
		s.cfg.Noted(r, notice)
	}
}
