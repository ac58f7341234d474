package nodeserver

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// addStates adds what the loop knows of volumes, and what a call showed that came later. It
// returns whether the loop checks volumes: else nothing renews what is known.
func (a admin) addStates(ctx context.Context, volumes []*adminpb.Volume) (loops bool) {
	var loop healer.LoopState
	if a.server.cfg.States != nil {
		loop = a.server.cfg.States(ctx)
	}
	byKey := map[volumeKey]healer.VolumeState{}
	for _, s := range loop.Volumes {
		byKey[volumeKey{valid(s.Driver), valid(s.VolumeID)}] = s
	}
	for _, v := range volumes {
		key := volumeKey{v.GetDriver(), v.GetVolumeId()}
		s := byKey[key]
		if last, known := a.server.answers.Get(key); known && last.(healer.VolumeState).Checked.After(s.Checked) {
			call := last.(healer.VolumeState)
			s.Verdict, s.Health, s.Checked = call.Verdict, call.Health, call.Checked
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

// GetStatus implements adminpb.AdminServer.
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
