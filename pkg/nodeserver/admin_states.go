package nodeserver

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// answers has what the last check or heal of a volume showed, whoever asked for it.
type answers struct {
	mu   sync.Mutex
	last map[volumeKey]healer.VolumeState
}

// maxAnswers is many times what a node has.
const maxAnswers = 1024

func (a *answers) add(r healer.Report, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[volumeKey]healer.VolumeState{}
	}
	key := volumeKey{valid(r.Driver), valid(r.Volume.ID)}
	a.last[key] = healer.VolumeState{Verdict: r.Verdict(), Health: r.After.HealthEntries(), Checked: at}
	if len(a.last) <= maxAnswers {
		return
	}
	oldest := key
	for k, s := range a.last {
		if s.Checked.Before(a.last[oldest].Checked) {
			oldest = k
		}
	}
	delete(a.last, oldest)
}

// of returns the zero state of a volume that nobody asked for.
func (a *answers) of(key volumeKey) healer.VolumeState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[key]
}

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
		if last := a.server.answers.of(key); last.Checked.After(s.Checked) {
			s.Verdict, s.Health, s.Checked = last.Verdict, last.Health, last.Checked
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
	if err := onlyRoot(ctx); err != nil {
		return nil, err
	}
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
