package nodeserver

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func (a admin) loopStates(ctx context.Context) (loop healer.LoopState, byKey map[volumeKey]healer.VolumeState) {
	if a.server.cfg.States != nil {
		loop = a.server.cfg.States(ctx)
	}
	byKey = map[volumeKey]healer.VolumeState{}
	for _, s := range loop.Volumes {
		byKey[volumeKey{valid(s.Driver), valid(s.VolumeID)}] = s
	}
	return loop, byKey
}

// addStates adds what the loop knows of volumes, or what a call showed that came later: then nothing
// of the loop's but when it checks the volume next, and an error that came later still, with which an answer
// that is long overdue makes the call's "healthy" void. It returns whether the loop checks volumes: else
// nothing renews what is known.
func (a admin) addStates(ctx context.Context, volumes []*adminpb.Volume) (loops bool) {
	loop, byKey := a.loopStates(ctx)
	for _, v := range volumes {
		key := volumeKey{v.GetDriver(), v.GetVolumeId()}
		s := byKey[key]
		known, _ := a.server.answers.Get(key)
		last, _ := known.(lastAnswer)
		// The loop publishes an answer a moment after it has it; one that hangs has no states.
		if last.Checked.After(s.Checked) && (!last.ofLoop || s.Checked.IsZero()) {
			last.Due = s.Due
			if s.Failed.After(last.Checked) {
				last.Error = s.Error
				unanswered := slices.IndexFunc(s.Health, func(e healer.HealthEntry) bool { return e.Reason == healer.CheckUnanswered })
				if unanswered >= 0 {
					last.Health = append(slices.Clone(last.Health), s.Health[unanswered])
				}
				if unanswered >= 0 && last.Verdict != healer.Abnormal {
					last.Verdict = ""
				}
			}
			s = last.VolumeState
		}
		if !loop.On {
			s.Due = time.Time{}
		}
		v.Error = adminText(s.Error)
		v.Verdict, v.Tries, v.Left = string(s.Verdict), int32(s.Tries), adminText(s.Left.String()) //nolint:gosec // a few
		v.Checked, v.Due, v.AbnormalSince = timestampOf(s.Checked), timestampOf(s.Due), timestampOf(s.Since)
		for _, e := range s.Health {
			v.Reasons = append(v.Reasons, adminText(string(e.Reason)))
		}
		v.Reasons = first(v.Reasons, maxListed, new(int32))
	}
	return loop.On
}

func (a admin) GetStatus(ctx context.Context, _ *adminpb.GetStatusRequest) (*adminpb.ServerStatus, error) {
	if a.server.cfg.Status == nil {
		return nil, toStatus(errNotOffered)
	}
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	out := &adminpb.ServerStatus{}
	for _, l := range a.server.cfg.Status(ctx) {
		out.Lines = append(out.Lines, &adminpb.StatusLine{Name: l.Name, Value: adminText(l.Value)})
	}
	return out, nil
}

// timestampOf returns nil for the zero time.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
