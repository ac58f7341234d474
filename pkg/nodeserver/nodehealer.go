package nodeserver

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// NodeHealer implements healerpb.HealerNodeServer.
func (s *Server) NodeHealer(ctx context.Context, req *healerpb.NodeHealerRequest) (resp *healerpb.NodeHealerResponse, err error) {
	started := time.Now()
	ctx = ofVolume(ctx, req.GetVolumeId())
	var report healer.Report
	err = errPanicked // for the log, if heal does not return
	defer func() { logHeal(ctx, time.Since(started), err, report) }()
	if report, err = s.heal(ctx, req); err != nil {
		err = toStatus(err)
		return nil, err
	}
	s.publish(report, false)
	abnormal, text := message(report)
	if all := inFull(report); all != text {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(healerpb.TrailerMessage, all)) // a call without a stream has none
	}
	return &healerpb.NodeHealerResponse{Abnormal: abnormal, Message: text}, nil
}

func (s *Server) heal(ctx context.Context, req *healerpb.NodeHealerRequest) (healer.Report, error) {
	if err := s.offered(); err != nil {
		return healer.Report{}, err
	}
	v, err := s.rules.volume(req)
	if err != nil {
		return healer.Report{}, err
	}
	do := s.cfg.Healer.Heal
	if onlyChecks(ctx) {
		do = s.cfg.Healer.Check
	}
	return s.run(ctx, v, []string{v.Path}, do)
}

// offered returns an error when the server is off.
func (s *Server) offered() error {
	if s.cfg.Off {
		return &healer.Error{Kind: healer.KindDisabled, Text: "this server was told to check and heal nothing (--mode=off)"}
	}
	return nil
}

// ofVolume returns the context of a call that is about a volume, which the log then names.
func ofVolume(ctx context.Context, id string) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).WithValues(keyVolumeID, printable.Line(id, maxVolumeIDBytes), keyCaller, healer.CallerOf(ctx)))
}

// run calls the engine for the first of the paths where the volume is. The report names the
// volume of the request, an error the first path.
func (s *Server) run(ctx context.Context, v healer.Volume, paths []string, do func(context.Context, healer.Volume) (healer.Report, error)) (healer.Report, error) {
	var missing error
	for _, v.Path = range paths {
		report, err := do(ctx, v)
		report.Volume = v
		if healer.KindOf(err) != healer.KindNotFound {
			return report, err
		}
		missing = cmp.Or(missing, err)
	}
	return healer.Report{}, cmp.Or(missing, healer.NotFound("nothing of the volume is mounted"))
}

// Publish keeps a report of the loop for ListVolumes and passes it to Config.OnReport, unless only the
// caller says which volume it belongs to. The server publishes those of its calls itself.
func (s *Server) Publish(r healer.Report) { s.publish(r, true) }

func (s *Server) publish(r healer.Report, ofLoop bool) {
	if !r.After.Case.Proven() {
		return
	}
	s.answers.Add(volumeKey{valid(r.Driver), valid(r.Volume.ID)}, lastAnswer{
		healer.VolumeState{Verdict: r.Verdict(), Health: r.After.HealthEntries(), Checked: time.Now()}, ofLoop,
	})
	if s.cfg.OnReport != nil {
		s.cfg.OnReport(r, notice)
	}
}
