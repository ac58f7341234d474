package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// StepDelegate has the driver heal its volume by NodeHealer of CSI-Addons.
const StepDelegate = "delegate"

// healsAt returns the CSI-Addons socket of a driver and the process that listens, unless the
// driver is known not to heal. It asks nothing, for the sake of the many checks that find nothing wrong: the
// step does. A driver that may be at work is tried whatever its sockets did: only
// NodeHealer can tell that it has ended.
func (p *Provider) healsAt(ctx context.Context, c healer.Case, csiSocket string, within time.Duration) (socket string, pid int, err error) {
	socket = addonsSocket(csiSocket)
	if p.Excludes(c) != "" {
		p.memory.cache.Remove(silent{socket: socket})
	} else if p.memory.silent(csiSocket, "") {
		return "", 0, errors.New("it does not answer on its CSI socket")
	}
	conn, pid, err := p.dial(ctx, socket, within)
	if err != nil {
		return "", 0, err
	}
	_ = conn.Close()
	if _, known := p.memory.cache.Get(withoutHealer{socket, pid}); known {
		return "", 0, errors.New("NodeHealer: UNIMPLEMENTED, as it said before")
	}
	return socket, pid, nil
}

// steps offers to have the driver heal what is acute at a mount point of the host, and a
// filesystem instance that has ended, which only a driver can replace. A container's own
// mounts are not the driver's.
func (p *Provider) steps(c healer.Case, socket string) (steps []healer.Step) {
	for _, mp := range c.MountPoints {
		var heals []healer.Reason
		for _, cond := range c.Found {
			heal := cond.Acute || cond.Disables() && slices.Contains(healer.EndedReasons(), cond.Reason)
			if heal && cond.MountPoint == mp.Path && !slices.Contains(heals, cond.Reason) {
				heals = append(heals, cond.Reason)
			}
		}
		if len(heals) == 0 || mp.InContainer != nil || mp.Role != healer.RoleTarget && mp.Role != healer.RoleStaging {
			continue
		}
		steps = append(steps, healer.Step{
			Name:       StepDelegate,
			MountPoint: mp,
			Cost:       healer.Delegate,
			Heals:      heals,
			Writes:     mayHaveDisk(c), // what the driver does is not known
			Run: func(ctx context.Context, revalidate func(context.Context) error) error {
				return p.delegate(ctx, c, mp, socket, revalidate)
			},
		})
	}
	return steps
}

// delegate asks the driver to heal the volume. What it answers is believed only if it
// is an error.
func (p *Provider) delegate(ctx context.Context, c healer.Case, mp healer.MountPoint, socket string, revalidate func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.StepTimeout)
	defer cancel()
	with, err := p.cfg.Stager.Usage(ctx, c, mp)
	if err != nil {
		return fmt.Errorf("%w: %w", healer.ErrRefused, err)
	}
	mode, err := accessMode(with, false)
	if err != nil {
		return err
	}
	conn, err := p.connect(ctx, c, socket, p.cfg.StepTimeout/parts)
	if err != nil {
		return err
	}
	defer conn.close()
	who := new(identity.GetIdentityResponse)
	if err = conn.call(ctx, identity.Identity_GetIdentity_FullMethodName, new(identity.GetIdentityRequest), who); err == nil {
		err = conn.named(who.GetName())
	}
	if err != nil {
		p.memory.leaveAlone(socket)
		return err
	}
	if err := revalidate(ctx); err != nil {
		return err
	}
	conn.each, conn.secret = p.cfg.StepTimeout, len(with.Secrets) > 0
	if err := healer.RecordCall(ctx, conn.pid, conn.each); err != nil {
		return err
	}
	resp := new(healerpb.NodeHealerResponse)
	err = conn.call(ctx, healerpb.HealerNode_NodeHealer_FullMethodName, &healerpb.NodeHealerRequest{
		VolumeId:          c.Volume.ID,
		VolumePath:        p.forDriver(mp.Path),
		StagingTargetPath: p.stagingPath(c),
		VolumeCapability:  capability(with, mode, nil),
		Secrets:           with.Secrets,
		VolumeContext:     with.VolumeContext,
	}, resp)
	e := (*callError)(nil)
	switch {
	case errors.As(err, &e) && e.code == codes.Unimplemented:
		p.memory.cache.Add(withoutHealer{socket, conn.pid}, true, withoutFor)
	case err != nil:
	case resp.GetAbnormal() && conn.secret:
		err = fmt.Errorf("driver %s says that the volume is abnormal; %s", healer.QuoteName(c.Driver), adviceDriver)
	case resp.GetAbnormal():
		err = errors.New(says(c.Driver) + clean(resp.GetMessage(), maxText))
	}
	return p.driverError(c, healer.Delegate, conn.pid, with, err)
}
