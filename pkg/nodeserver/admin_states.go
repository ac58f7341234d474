package nodeserver

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// addStates adds what the loop knows of volumes.
func (a admin) addStates(ctx context.Context, volumes []*adminpb.Volume) {
	if a.server.cfg.States == nil {
		return
	}
	byKey := map[volumeKey]healer.VolumeState{}
	for _, s := range a.server.cfg.States(ctx).Volumes {
		byKey[volumeKey{valid(s.Driver), valid(s.VolumeID)}] = s
	}
	for _, v := range volumes {
		s, known := byKey[volumeKey{v.GetDriver(), v.GetVolumeId()}]
		if !known {
			continue
		}
		v.Error = adminText(s.Error)
		v.Verdict, v.Tries, v.Left = string(s.Verdict), int32(s.Tries), adminText(s.Left.String()) //nolint:gosec // a few
		v.Checked, v.Due, v.AbnormalSince = timestampOf(s.Checked), timestampOf(s.Due), timestampOf(s.Since)
		for _, e := range s.Health {
			v.Reasons = append(v.Reasons, adminText(string(e.Reason)))
		}
		v.Reasons = first(v.Reasons, maxListed, new(int32))
	}
}

// timestampOf returns nil for the zero time.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
