package engine

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// A container of a raw block volume has a device node that the runtime made when the container
// started: a device number, whatever the host has at the mount point later. A disk that is attached
// anew may get another number, and another disk the old one: the container then writes to that.

// oldDevices finds the containers of a raw block volume that started while its device
// had the recorded number, if that is another one now.
func (o *observation) oldDevices(ctx context.Context) error {
	for _, p := range o.c.MountPoints {
		block := p.Role == healer.RoleTarget && p.PodUID != "" && p.Inspect.Kind == facts.KindBlock
		if !block || p.Want == nil || p.Want.Dev.Zero() || !o.c.RecordOfThisBoot() || p.Want.Dev == p.Dev() {
			continue
		}
		running, err := o.node.Running(ctx, []string{p.PodUID})
		if err != nil {
			return healer.Failed("look for the containers that have the volume", err)
		}
		until := node.SinceBoot()
		if f, known := o.c.PreviousOf(p.Want.Dev); known {
			until = f.Since
		}
		for _, r := range running {
			if r.Started <= until {
				o.c.OnOldDevice = append(o.c.OnOldDevice, healer.StartedBefore{MountPoint: p.Path, Container: r, Was: p.Want.Dev, Now: p.Dev()})
			}
		}
	}
	return nil
}

// saveOldDevices puts into the record when a device was first seen with another number:
// containers that start later have that one. All else in it stays as it is.
func (e *Engine) saveOldDevices(ctx context.Context, c healer.Case) {
	now := *c.Record
	now.Previous = c.PreviousOfBoot()
	for _, s := range c.OnOldDevice {
		if !c.Replaced(s.Was) {
			addPrevious(&now, c, s.Was)
		}
	}
	if now.Same(*c.Record) {
		return
	}
	if err := e.cfg.Records.Save(now); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save when a device got another number", "driver", c.Driver)
	}
}
