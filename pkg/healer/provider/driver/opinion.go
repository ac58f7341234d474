package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/csi-addons/node-healer/internal/wire"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const adviceDriver = "see the log of the driver's pod on this node"

// opinion asks a driver what is wrong with what is mounted; nil is nothing. Its error says why
// the driver has no say.
func (p *Provider) opinion(ctx context.Context, c healer.Case, conn *connection, socket string) (*healer.Condition, error) {
	at, mounted := askedAbout(c)
	switch {
	case !mounted:
		return nil, errors.New("nothing is mounted")
	case p.memory.silent(socket, c.Volume.ID):
		return nil, errors.New("it did not answer about the volume a short time ago")
	}
	status, text, err := p.ask(ctx, c, conn, socket)
	p.memory.note(socket, c.Volume.ID, err)
	if err != nil {
		return nil, err
	}
	if status == "" { // a node may have more volumes than opinions are kept: this displaces none
		p.memory.opinions.Remove(keyOf(c))
		return nil, nil //nolint:nilnil // nothing is wrong
	}
	o := opinion{status, text, at.Dev(), p.memory.clock.Now()}
	p.memory.opinions.Add(keyOf(c), o, opinionFor)
	return o.about(c, at), nil
}

// opinion is what a driver found wrong with a volume.
type opinion struct {
	status healer.Status
	text   string
	// dev is what was mounted then.
	dev   facts.Dev
	asked time.Time
}

// opinionFor is how long an opinion stands while the driver cannot be asked.
const opinionFor = 10 * time.Minute

// lastOpinion returns what the driver found wrong when it was asked last, for what is
// mounted now; nil if it was nothing, or too long ago.
func (m memory) lastOpinion(c healer.Case) *healer.Condition {
	at, mounted := askedAbout(c)
	known, _ := m.opinions.Get(keyOf(c))
	o, kept := known.(opinion)
	if !mounted || !kept || o.dev != at.Dev() { // else the driver has staged another instance since
		return nil
	}
	o.text = fmt.Sprintf("%s; that was %s ago, and it cannot be asked now", o.text, m.clock.Now().Sub(o.asked).Truncate(time.Second))
	return o.about(c, at)
}

// about returns what is wrong by an opinion about a mount point. A mount that
// answers something else than its superblock says nothing about other mounts of it: a stale NFS
// export is healed by the directory that the driver has staged from the same server since.
func (o opinion) about(c healer.Case, at healer.MountPoint) *healer.Condition {
	cond := &healer.Condition{
		Status: o.status, Reason: healer.DriverReportsAbnormal, MountPoint: at.Path, Message: says(c.Driver) + o.text, Advice: adviceDriver,
	}
	if !c.AnswersAlone(at) {
		cond.Superblock = at.Dev()
	}
	return cond
}

// askedAbout returns the mount point about which a driver is asked: a target, else what is staged.
func askedAbout(c healer.Case) (at healer.MountPoint, mounted bool) {
	for _, mp := range c.MountPoints {
		if mp.InContainer == nil && mp.Mounted() && (!mounted || at.Role != healer.RoleTarget && mp.Role == healer.RoleTarget) {
			at, mounted = mp, true
		}
	}
	return at, mounted
}

// ask asks in the newest way that the driver offers, once it has named itself. What a process offers
// that can be seen is asked once in a while, and not in each check.
func (p *Provider) ask(ctx context.Context, c healer.Case, conn *connection, socket string) (status healer.Status, text string, err error) {
	key := process{conn.driver, socket, conn.pid}
	known, _ := p.memory.cache.Get(key)
	offered, kept := known.([]csi.NodeServiceCapability_RPC_Type)
	if !kept {
		if offered, err = conn.introduce(ctx); err != nil {
			return "", "", err
		}
		if conn.pid != 0 { // a process that cannot be seen may be another one the next time
			p.memory.cache.Add(key, offered, knownFor)
		}
	}
	switch {
	case slices.Contains(offered, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH):
		return p.askHealth(ctx, c, conn)
	case slices.Contains(offered, volumeCondition):
		return p.askStats(ctx, c, conn)
	}
	return "", "", errors.New("it offers neither GET_VOLUME_HEALTH nor VOLUME_CONDITION")
}

// introduce has the driver name itself, and returns what it offers on the node.
func (c *connection) introduce(ctx context.Context) (offered []csi.NodeServiceCapability_RPC_Type, err error) {
	info, resp := new(csi.GetPluginInfoResponse), new(csi.NodeGetCapabilitiesResponse)
	if err := c.call(ctx, csi.Identity_GetPluginInfo_FullMethodName, new(csi.GetPluginInfoRequest), info); err != nil {
		return nil, err
	}
	if err := c.named(info.GetName()); err != nil {
		return nil, err
	}
	if err := c.call(ctx, csi.Node_NodeGetCapabilities_FullMethodName, new(csi.NodeGetCapabilitiesRequest), resp); err != nil {
		return nil, err
	}
	for _, can := range resp.GetCapabilities() {
		offered = append(offered, can.GetRpc().GetType())
	}
	return offered, nil
}

// The statuses by those of CSI. Others have to be ignored (CSI 1.13, VolumeHealth).
var statuses = map[csi.VolumeHealthErrorType]healer.Status{
	csi.VolumeHealthErrorType_DEGRADED:     healer.Degraded,
	csi.VolumeHealthErrorType_INACCESSIBLE: healer.Inaccessible,
	csi.VolumeHealthErrorType_DATA_LOSS:    healer.DataLoss,
}

func (p *Provider) askHealth(ctx context.Context, c healer.Case, conn *connection) (status healer.Status, text string, err error) {
	target, staged := p.paths(c)
	req := &csi.NodeGetVolumeHealthRequest{VolumeId: c.Volume.ID, VolumePublishPath: target, StagingTargetPath: staged}
	resp := new(csi.NodeGetVolumeHealthResponse)
	if err := conn.call(ctx, csi.Node_NodeGetVolumeHealth_FullMethodName, req, resp); err != nil {
		return "", "", err
	}
	if id := resp.GetVolumeHealth().GetVolumeId(); id != "" && id != c.Volume.ID {
		return "", "", errors.New("NodeGetVolumeHealth: the answer is about another volume")
	}
	entries := slices.DeleteFunc(resp.GetVolumeHealth().GetHealthStatuses(), func(e *csi.VolumeHealth_VolumeHealthEntry) bool {
		return statuses[e.GetStatus()] == ""
	})
	if len(entries) == 0 {
		return "", "", nil
	}
	worst := slices.MaxFunc(entries, func(a, b *csi.VolumeHealth_VolumeHealthEntry) int { return int(a.GetStatus()) - int(b.GetStatus()) })
	text = fmt.Sprintf("%s (%s)", clean(worst.GetReason(), maxName), clean(worst.GetMessage(), maxText))
	if more := len(entries) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return statuses[worst.GetStatus()], text, nil
}

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

func says(driver string) string { return fmt.Sprintf("driver %s says: ", healer.QuoteName(driver)) }

// paths returns where the volume is published and staged, as the driver knows them. A
// target where nothing is mounted is left out: that is known, and the driver is asked
// about the rest.
func (p *Provider) paths(c healer.Case) (target, staged string) {
	if at, mounted := askedAbout(c); mounted && at.Role == healer.RoleTarget {
		target = p.forDriver(at.Path)
	}
	return target, p.stagingPath(c)
}

// stagingPath returns the staging_target_path that kubelet calls the driver with, which
// may have staged below it; empty if nothing is staged.
func (p *Provider) stagingPath(c healer.Case) string {
	staged, found := c.Staged()
	switch {
	case !found:
		return ""
	case staged.Layout.Base != "":
		return p.forDriver(staged.Layout.Base)
	case c.Volume.StagingPath != "":
		return p.forDriver(c.Volume.StagingPath)
	}
	return p.forDriver(staged.Path)
}
