package nodeserver

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// NodeGetVolumeStats implements csi.NodeServer. The usage is what the check found: a
// volume that does not answer has none, and the condition says why.
func (n csiNode) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	report, err := n.volumeStats(ctx, req)
	if err != nil {
		return nil, toStatus(err, nil)
	}
	resp := &csi.NodeGetVolumeStatsResponse{Usage: usage(report.After)}
	resp.ProtoReflect().SetUnknown(volumeCondition(report.After))
	return resp, nil
}

func (n csiNode) volumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (healer.Report, error) {
	if err := n.offered(); err != nil {
		return healer.Report{}, err
	}
	path := req.GetVolumePath()
	if path != "" && !strings.HasPrefix(path, "/") && volumeID(req.GetVolumeId()) == nil {
		// The one rule that differs from NodeHealer's: csi-sanity expects NOT_FOUND
		// for such a path.
		return healer.Report{}, healer.NotFound("volume_path: must be an absolute path, there is no volume at %s", quoted(path))
	}
	v, err := n.server.rules.named(req.GetVolumeId(), fieldVolumePath, path, req.GetStagingTargetPath(), required)
	if err != nil {
		return healer.Report{}, err
	}
	return n.check(ctx, v)
}

// usage returns how full the volume is, at the mount point of the request.
func usage(d healer.Diagnosis) []*csi.VolumeUsage {
	if len(d.Case.MountPoints) == 0 {
		return nil
	}
	mountPoint := d.Case.MountPoints[0]
	sb, known := d.Case.Superblocks[mountPoint.Dev()]
	if !known || len(mountPoint.Stack) == 0 || isWrong(d, mountPoint) {
		return nil
	}
	if sb.Kind == host.KindBlock {
		if !sb.Opened.Open {
			return nil
		}
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: clamp(sb.Opened.Size)}}
	}
	return usageOf(sb.Space)
}

// isWrong reports whether something else than the volume is mounted.
func isWrong(d healer.Diagnosis, p healer.MountPoint) bool {
	return slices.ContainsFunc(d.Conditions, func(c healer.Condition) bool {
		return c.Reason == healer.WrongVolumeMounted && c.MountPoint == p.Path
	})
}

// usageOf leaves out what the filesystem does not report.
func usageOf(s host.Space) []*csi.VolumeUsage {
	var usage []*csi.VolumeUsage
	if s.Blocks > 0 && s.BlockSize > 0 {
		usage = append(usage, &csi.VolumeUsage{
			Unit:  csi.VolumeUsage_BYTES,
			Total: product(s.Blocks, s.BlockSize), Available: product(s.Available, s.BlockSize), Used: product(less(s.Blocks, s.Free), s.BlockSize),
		})
	}
	if s.Files > 0 {
		usage = append(usage, &csi.VolumeUsage{
			Unit:  csi.VolumeUsage_INODES,
			Total: clamp(s.Files), Available: clamp(s.FreeFiles), Used: clamp(less(s.Files, s.FreeFiles)),
		})
	}
	return usage
}

// A FUSE daemon may report any number, and CSI has none below zero.

func less(a, b uint64) uint64 { return a - min(a, b) }

func product(a, b uint64) int64 {
	over, n := bits.Mul64(a, b)
	if over > 0 {
		return math.MaxInt64
	}
	return clamp(n)
}

func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) } //nolint:gosec // it is in range now

// The fields of CSI before 1.13, where they are reserved: volume_condition of
// NodeGetVolumeStatsResponse, and what is in a VolumeCondition.
const (
	fieldVolumeCondition protowire.Number = 2
	fieldAbnormal        protowire.Number = 1
	fieldMessage         protowire.Number = 2
)

// volumeCondition returns the VolumeCondition for older callers, encoded.
func volumeCondition(d healer.Diagnosis) []byte {
	abnormal, text := conditionText(d)
	var condition []byte
	if abnormal {
		condition = protowire.AppendVarint(protowire.AppendTag(condition, fieldAbnormal, protowire.VarintType), 1)
	}
	condition = protowire.AppendString(protowire.AppendTag(condition, fieldMessage, protowire.BytesType), text)
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldVolumeCondition, protowire.BytesType), condition)
}

// conditionText sums a diagnosis up in one short line.
func conditionText(d healer.Diagnosis) (abnormal bool, text string) {
	if d.Healthy() {
		return false, string(healer.Healthy)
	}
	entries := healthEntries(d)
	found := make([]string, 0, len(entries))
	for _, e := range entries {
		found = append(found, fmt.Sprintf("%s (%s)", e.GetReason(), e.GetMessage()))
	}
	text = strings.Join(found, ", ")
	return true, printable.Line(string(healer.Abnormal)+": "+text, maxCSIStringBytes)
}
