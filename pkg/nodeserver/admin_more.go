package nodeserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
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

// ListHolders implements adminpb.AdminServer.
func (a admin) ListHolders(ctx context.Context, req *adminpb.ListHoldersRequest) (*adminpb.Holders, error) {
	if err := onlyRoot(ctx); err != nil {
		return nil, err
	}
	paths, err := a.find(ctx, req.GetDriver(), req.GetVolumeId())
	if err != nil {
		return nil, toStatus(err, nil)
	}
	mounts, err := a.server.cfg.Volumes.VolumeMounts()
	if err != nil {
		return nil, toStatus(healer.Failed("read the mount table", err), nil)
	}
	types := map[host.Dev]string{}
	var asked []host.Holdable
	for _, m := range mounts {
		if _, already := types[m.Dev]; !already && slices.Contains(paths, m.Path) {
			types[m.Dev] = m.FSType
			asked = append(asked, host.Holdable{Superblock: m.Dev})
		}
	}
	if len(asked) == 0 {
		return nil, toStatus(healer.NotFound("nothing of the volume is mounted"), nil)
	}
	found, err := a.server.cfg.Volumes.Holders(ctx, asked)
	if err != nil {
		return nil, toStatus(healer.Failed("look for holders", err), nil)
	}
	out := &adminpb.Holders{}
	for _, what := range asked {
		by := cmp.Or(healer.HoldersText(found[what]), "held by nothing that could be seen")
		out.Filesystems = append(out.Filesystems, adminText(fmt.Sprintf("%s (%s): %s", types[what.Superblock], what.Superblock, by)))
	}
	return out, nil
}
