package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/csi-addons/node-healer/internal/wire"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// volumeCondition is VOLUME_CONDITION of CSI before 1.13, which reserves the number.
const volumeCondition csi.NodeServiceCapability_RPC_Type = 4

// askStats asks for what CSI had before 1.13. It has no status: an abnormal volume may
// still be usable.
func (p *Provider) askStats(ctx context.Context, c healer.Case, conn *connection) (status healer.Status, text string, err error) {
	target, staged := p.paths(c)
	req := &csi.NodeGetVolumeStatsRequest{VolumeId: c.Volume.ID, VolumePath: target, StagingTargetPath: staged}
	if target == "" {
		req.VolumePath = staged
	}
	resp := new(csi.NodeGetVolumeStatsResponse)
	if err := conn.call(ctx, csi.Node_NodeGetVolumeStats_FullMethodName, req, resp); err != nil {
		return "", "", err
	}
	abnormal, message := conditionIn(resp.ProtoReflect().GetUnknown())
	if !abnormal {
		return "", "", nil
	}
	return healer.Degraded, clean(message, maxText), nil
}

// conditionIn reads the VolumeCondition of CSI before 1.13 in the fields of a
// NodeGetVolumeStatsResponse that later versions do not know.
func conditionIn(fields []byte) (abnormal bool, message string) {
	const volumeCondition, isAbnormal, text = 2, 1, 2
	wire.Each(fields, func(number protowire.Number, _ uint64, condition []byte) {
		if number != volumeCondition {
			return
		}
		wire.Each(condition, func(number protowire.Number, n uint64, s []byte) {
			switch number {
			case isAbnormal:
				abnormal = n != 0
			case text:
				message = string(s)
			}
		})
	})
	return abnormal, message
}
