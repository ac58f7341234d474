package nodeserver

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// VolumeState is what the node's own loop saw of a volume last.
type VolumeState struct {
	Driver, VolumeID string
	Verdict          healer.Verdict
	Health           []healer.HealthEntry
	// Checked is zero before the first check, Since while nothing is wrong.
	Checked, Due, Since time.Time
	Tries               int
	Left                string
}

// addStates adds what the loop knows of volumes.
func (a admin) addStates(ctx context.Context, volumes []*adminpb.Volume) {
	if a.server.cfg.States == nil {
		return
	}
	byKey := map[volumeKey]VolumeState{}
	for _, s := range a.server.cfg.States(ctx) {
		byKey[volumeKey{valid(s.Driver), valid(s.VolumeID)}] = s
	}
	for _, v := range volumes {
		s, known := byKey[volumeKey{v.GetDriver(), v.GetVolumeId()}]
		if !known {
			continue
		}
		v.Verdict, v.Tries, v.Left = string(s.Verdict), int32(s.Tries), adminText(s.Left) //nolint:gosec // a few
		v.Checked, v.Due, v.AbnormalSince = timestampOf(s.Checked), timestampOf(s.Due), timestampOf(s.Since)
		for _, e := range s.Health {
			v.Reasons = append(v.Reasons, adminText(string(e.Reason)))
		}
		v.Reasons = first(v.Reasons, new(int32))
	}
}

// timestampOf returns nil for the zero time.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
