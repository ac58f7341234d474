package nodeserver

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Volumes finds all volumes of this node; *node.Node is the real one.
type Volumes interface {
	// Volumes returns what it finds also with a facts.UnlistedError.
	Volumes(ctx context.Context) ([]facts.VolumePath, error)
}

// admin implements adminpb.AdminServer. Only root gets here: see around.
type admin struct {
	adminpb.UnimplementedAdminServer
	server *Server
}

func (a admin) ListVolumes(_ *adminpb.ListVolumesRequest, stream grpc.ServerStreamingServer[adminpb.Volume]) error {
	trailer := metadata.MD{}
	paths, err := a.server.paths(stream.Context())
	switch {
	case errors.As(err, new(*facts.UnlistedError)):
		klog.FromContext(stream.Context()).Info("Some volumes are not listed", keyError, printable.Line(err.Error(), logTextBytes))
		trailer.Set(adminpb.TrailerUnlisted, adminText(err.Error()))
	case err != nil:
		return toStatus(healer.Failed("list the volumes", err))
	}
	volumes := volumesOf(a.addNames(stream.Context(), paths, true))
	if !a.addStates(stream.Context(), volumes) {
		trailer.Set(adminpb.TrailerLoopOff, "off")
	}
	stream.SetTrailer(trailer)
	for _, v := range volumes {
		if err := stream.Send(v); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) paths(ctx context.Context) ([]facts.VolumePath, error) {
	all, err := s.cfg.Volumes.Volumes(ctx)
	if of := s.cfg.Driver; of != "" {
		all = slices.DeleteFunc(all, func(p facts.VolumePath) bool { return p.DriverName != of })
	}
	return all, err
}

// fieldPath is a request's field as errors name it.
const fieldPath = "path"

type volumeKey struct{ driver, volumeID string }

// volumesOf returns the volumes that have the paths, sorted.
func volumesOf(paths []namedPath) (volumes []*adminpb.Volume) {
	byKey := map[volumeKey]*adminpb.Volume{}
	for _, p := range paths {
		k := volumeKey{p.DriverName, p.VolumeHandle}
		v := byKey[k]
		if v == nil {
			v = &adminpb.Volume{Driver: valid(p.DriverName), VolumeId: valid(p.VolumeHandle)}
			byKey[k], volumes = v, append(volumes, v)
		}
		v.Pv, v.Claim = cmp.Or(v.Pv, valid(p.PV)), cmp.Or(v.Claim, p.claim)
		if pod := cmp.Or(p.pod, valid(p.PodUID)); pod != "" && !slices.Contains(v.Pods, pod) && len(v.Pods) < maxListed {
			v.Pods = append(v.Pods, pod)
		}
		if len(v.Paths) < maxListed {
			v.Paths = append(v.Paths, &adminpb.VolumePath{Path: valid(p.Path), Staging: p.Staging, Mounted: p.Mounted})
		} else {
			v.Omitted++
		}
	}
	slices.SortFunc(volumes, func(x, y *adminpb.Volume) int {
		return cmp.Or(cmp.Compare(x.GetDriver(), y.GetDriver()), cmp.Compare(x.GetVolumeId(), y.GetVolumeId()))
	})
	return volumes
}

func (a admin) CheckVolume(ctx context.Context, req *adminpb.CheckVolumeRequest) (*adminpb.VolumeReport, error) {
	return a.do(ctx, req.GetDriver(), req.GetVolumeId(), req.GetPath(), false)
}

func (a admin) HealVolume(ctx context.Context, req *adminpb.HealVolumeRequest) (*adminpb.VolumeReport, error) {
	return a.do(ctx, req.GetDriver(), req.GetVolumeId(), req.GetPath(), !req.GetDryRun())
}

func (a admin) do(ctx context.Context, driver, name, path string, heals bool) (*adminpb.VolumeReport, error) {
	started := time.Now()
	if err := a.server.offered(); err != nil {
		return nil, toStatus(err)
	}
	known, published, staged, err := a.find(ctx, driver, name, path)
	v := healer.Volume{ID: known.GetVolumeId(), Named: true}
	paths := []string{path}
	switch {
	case path == "":
		// The caller named no path: that the volume is wanted there has to be shown.
		v.Unasked, v.Published, paths = true, published, append(published, staged...)
	case err == nil || healer.KindOf(err) == healer.KindNotFound: // kubelet may have no such volume
		v.ID = cmp.Or(v.ID, name)
		_, err = a.server.rules.named(v.ID, fieldPath, path, "")
	}
	if err != nil {
		return nil, toStatus(err)
	}
	ctx = ofVolume(ctx, v.ID)
	do := a.server.cfg.Healer.Check
	if heals {
		do = a.server.cfg.Healer.Heal
	}
	report, err := a.server.run(ctx, v, paths, do)
	if err != nil {
		err = toStatus(err)
	}
	logHeal(ctx, time.Since(started), err, report)
	if err != nil {
		return nil, err
	}
	a.server.publish(report, false)
	out := adminReport(report, !heals)
	out.Pv, out.Claim, out.Pods = known.GetPv(), known.GetClaim(), known.GetPods()
	if !heals && known != nil {
		ctx, cancel := context.WithTimeout(ctx, statesTimeout)
		defer cancel()
		_, byKey := a.loopStates(ctx)
		out.LoopError = adminText(byKey[volumeKey{known.GetDriver(), known.GetVolumeId()}].Error)
	}
	return out, nil
}

func (a admin) Explain(_ context.Context, _ *adminpb.ExplainRequest) (*adminpb.ExplainResponse, error) {
	out := new(adminpb.ExplainResponse)
	for _, c := range a.server.cfg.Explained {
		out.Conditions = append(out.Conditions, &adminpb.Condition{
			Reason: adminText(string(c.Reason)), Status: string(c.Status), Acute: c.Acute, Message: adminText(c.Message), Advice: adminText(c.Advice),
		})
	}
	return out, nil
}

// statesTimeout is how long an answer waits for a loop that may hang.
const statesTimeout = time.Second

// find returns the volume that has a name, and the paths where it is published and staged. It
// fails where kubelet's files say that path is of another driver's volume, which may have the
// same ID.
func (a admin) find(ctx context.Context, driver, name, path string) (v *adminpb.Volume, published, staged []string, err error) {
	if name == "" || len(name) > maxVolumeIDBytes {
		return nil, nil, nil, healer.Invalid("volume_id", "must have 1 to %d bytes", maxVolumeIDBytes)
	}
	all, unlisted := a.server.paths(ctx)
	if unlisted != nil && !errors.As(unlisted, new(*facts.UnlistedError)) {
		return nil, nil, nil, healer.Failed("find the volume", unlisted)
	}
	paths, err := a.named(ctx, driver, name, all)
	if len(paths) > 0 {
		driver = paths[0].DriverName
	}
	of := slices.IndexFunc(all, func(p facts.VolumePath) bool { return p.Path == path && driver != "" && p.DriverName != driver })
	unknown := healer.KindOf(err) == healer.KindNotFound
	switch {
	case of >= 0 && (err == nil || unknown):
		return nil, nil, nil, healer.Invalid(fieldPath, "is of a volume of driver %s, and the volume that was named is of %s", all[of].DriverName, driver)
	case unlisted != nil && unknown: // it may be among the others
		return nil, nil, nil, healer.Failed("find the volume", unlisted)
	case err != nil:
		return nil, nil, nil, err
	}
	for _, p := range paths {
		if p.Staging {
			staged = append(staged, p.Path)
		} else {
			published = append(published, p.Path)
		}
	}
	return volumesOf(paths)[0], published, staged, nil
}

// valid returns s as a protobuf string may be.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
