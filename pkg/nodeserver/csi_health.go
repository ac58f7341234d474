package nodeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const fieldPublishPath = "volume_publish_path"

// NodeGetVolumeHealth implements csi.NodeServer. NOT_FOUND means that the volume is not
// on the node: one that is staged and could not be published is checked where it is
// staged.
func (n csiNode) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	report, err := n.volumeHealth(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	tellCures(ctx, report.After)
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{
		VolumeId:       req.GetVolumeId(),
		HealthStatuses: healthEntries(report.After),
	}}, nil
}

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

func (n csiNode) volumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (healer.Report, error) {
	if err := n.server.offered(); err != nil {
		return healer.Report{}, err
	}
	v, err := n.server.rules.named(req.GetVolumeId(), fieldPublishPath, req.GetVolumePublishPath(), req.GetStagingTargetPath())
	if err != nil {
		return healer.Report{}, err
	}
	paths := slices.DeleteFunc(slices.Compact([]string{v.Path, v.StagingPath}), func(path string) bool { return path == "" })
	if len(paths) == 0 {
		if paths, err = n.find(ctx, v.ID); err != nil {
			return healer.Report{}, err
		}
	}
	report, err := n.server.run(ofVolume(ctx, v.ID), v, paths, n.check)
	if err == nil {
		n.server.publish(report, false)
	}
	return report, err
}

// check examines a volume and changes nothing.
func (n csiNode) check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	report, err := n.server.cfg.Healer.Check(ctx, v)
	if mountPoints := report.After.Case.MountPoints; err == nil && len(mountPoints) > 0 && !mountPoints[0].Proven && len(mountPoints[0].Stack) == 0 {
		err = healer.NotFound("volume_id: nothing is mounted at the path, and nothing shows that it is this volume's")
	}
	return report, err
}

// find returns the paths of a volume for a request that names none, as CSI allows: those at which
// something is mounted first.
func (n csiNode) find(ctx context.Context, volumeID string) ([]string, error) {
	driver := n.server.cfg.Driver
	if n.server.cfg.Volumes == nil || driver == "" { // two drivers may have volumes of one ID
		return nil, healer.Invalid(fieldPublishPath, "is required by this server, or %s", fieldStaging)
	}
	all, err := n.server.paths(ctx)
	var mounted, lost []string
	for _, p := range all {
		switch {
		case p.VolumeHandle != volumeID:
		case p.Mounted:
			mounted = append(mounted, p.Path)
		default:
			lost = append(lost, p.Path)
		}
	}
	switch found := slices.Concat(mounted, lost); {
	case len(found) > 0:
		return found, nil
	case err != nil: // it may be among those that are not listed
		return nil, healer.Failed("find the volume", err)
	}
	return nil, healer.NotFound("volume_id: kubelet has no such volume of driver %s on this node", driver)
}

// healthStatus has no UNKNOWN_VOLUME_HEALTH_TYPE, which is the rest.
var healthStatus = map[healer.Status]csi.VolumeHealthErrorType{
	healer.Degraded:     csi.VolumeHealthErrorType_DEGRADED,
	healer.Inaccessible: csi.VolumeHealthErrorType_INACCESSIBLE,
	healer.DataLoss:     csi.VolumeHealthErrorType_DATA_LOSS,
}

// healthEntries puts a diagnosis in the form that CSI wants: each status and reason
// once, with where it was found first, the worst first. CSI has no status for what
// could not be judged, nor for a provider that failed, and a list without an entry would say
// that nothing is wrong.
func healthEntries(d healer.Diagnosis) []*csi.VolumeHealth_VolumeHealthEntry {
	w := newWording(healer.Report{After: d}, maxShortPathBytes)
	var entries []*csi.VolumeHealth_VolumeHealthEntry
	for _, c := range w.after {
		status, reason := healthStatus[c.Status], printable.Line(string(c.Reason), maxReasonBytes)
		told := func(e *csi.VolumeHealth_VolumeHealthEntry) bool {
			return e.GetStatus() == status && e.GetReason() == reason
		}
		if slices.ContainsFunc(entries, told) {
			continue
		}
		place := w.placeOf(c, func(path string) string {
			switch p := w.byPath[path]; {
			case p.Role == "":
				return ""
			case p.InContainer == nil:
				return p.Role.Noun()
			}
			return w.mountPoint(path)
		})
		message := printable.Line(strings.TrimPrefix(place+": "+c.Message, ": "), maxCSIStringBytes)
		entries = append(entries, &csi.VolumeHealth_VolumeHealthEntry{Status: status, Reason: reason, Message: message})
	}
	slices.SortStableFunc(entries, func(a, b *csi.VolumeHealth_VolumeHealthEntry) int {
		return cmp.Or(cmp.Compare(b.GetStatus(), a.GetStatus()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
	return entries
}
