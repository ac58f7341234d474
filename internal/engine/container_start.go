package engine

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// A container gets what is at its pod's mount point when it starts, and keeps that, whatever is
// mounted there later. While nothing is mounted it is the directory beneath: what the container
// writes lands on the node's disk. In the middle of a step it is a read-only placeholder.

// startGrace is how long a container may take from a copy of the host's mounts to
// mounts of its own.
const startGrace = time.Minute

// mountedAnew reports whether the mount of a target is not the recorded one of this
// boot, or came less than startGrace before the last scan.
//
// The recorded mount needs no scan: unique mount ids are never given out again, so it was there
// all the time since the record was written, and containers that started meanwhile got it. While a
// container has something else, or may, the record has Since for the mount (gapAt), and each call
// scans.
func (o *observation) mountedAnew(p healer.MountPoint) bool {
	if p.Role != healer.RoleTarget || p.Layout.Kind == layout.Subpath || o.c.Block {
		return false
	}
	top, mounted := p.Top()
	switch {
	case !mounted, top.ID == 0: // without a unique id no mount is known to be the recorded one
		return true
	case p.Want == nil || !o.c.RecordOfThisBoot():
		return top.ID > o.known.started
	}
	return p.Want.MountID != top.ID || p.Want.Since != 0
}

// beneathMountPoint returns the directory on which the mounts of a mount point are
// stacked. It is on no device if the mount table does not show where it lies.
func (o *observation) beneathMountPoint(p healer.MountPoint) facts.Directory {
	parent, _ := o.table.ParentMount(path.Dir(p.Path))
	return facts.Directory{Dev: parent.Dev, Path: path.Join(parent.Root, strings.TrimPrefix(p.Path, parent.Path))}
}

// startedWith moves from the mounts of containers into the case what some of them got
// instead of the volume.
func (o *observation) startedWith(mounts []facts.ContainerMount, s containerScan) (others []facts.ContainerMount) {
	for _, m := range mounts {
		at := slices.IndexFunc(s.needScan, func(p healer.MountPoint) bool { return o.beneathMountPoint(p).Shown(m.Mount) })
		switch {
		case at >= 0:
			o.c.OnBare = append(o.c.OnBare, healer.StartedWith{MountPoint: s.needScan[at].Path, ContainerMount: m})
		case o.placeholder(m, s.now):
			o.c.OnPlaceholder = append(o.c.OnPlaceholder, healer.StartedWith{MountPoint: o.c.TargetOf(m.PodUID), ContainerMount: m})
		default:
			others = append(others, m)
		}
	}
	if len(o.c.OnBare)+len(o.c.OnPlaceholder) == 0 && !s.cut {
		var newest uint64
		for _, p := range s.needScan {
			if top, mounted := p.Top(); mounted {
				newest = max(newest, top.ID)
			}
		}
		o.remember(func(v *scannedVolume) { v.started = max(v.started, newest) })
	}
	return others
}

// placeholder reports whether a container's mount has the attributes of a placeholder, and neither
// an interrupted replacement in the container explains them nor that the volume itself is mounted
// so.
func (o *observation) placeholder(m facts.ContainerMount, now facts.Mount) bool {
	want := now.Attr
	if p, _ := o.c.MountPoint(o.c.TargetOf(m.PodUID)); p.Want != nil {
		want = p.Want.Attr
	} else if top, mounted := p.Top(); mounted {
		want = top.Attr
	}
	_, recorded := recordedMount(o.c, m)
	return m.Mount.Dev == now.Dev && !recorded && m.Mount.MaybePlaceholder(want)
}

// gap is the interval, in time since the boot, before the present mount came to a mount
// point: a container that started in it may have the bare directory, or an earlier mount.
type gap struct{ from, until time.Duration }

// has reports whether a process may have started in the gap. The kernel cuts its start to a
// hundredth of a second (proc_pid_stat(5)): in doubt it has, and the container is named.
func (g gap) has(started time.Duration) bool {
	return g.from < started+time.Second/100 && started <= g.until
}

// gapAt returns the gap at a mount point, for the record; zero once a scan that began long enough
// after it found no container with something else. started: such a container is there, or may be.
func gapAt(c healer.Case, p healer.MountPoint) gap {
	started := slices.ContainsFunc(slices.Concat(c.OnBare, c.OnPlaceholder), func(s healer.StartedWith) bool { return s.MountPoint == p.Path }) ||
		slices.ContainsFunc(c.UnverifiedStart, func(u facts.Unverified) bool { return u.PodUID == p.PodUID || u.Why == facts.WhyScanCut })
	known := p.Want != nil && c.RecordOfThisBoot()
	now := node.SinceBoot()
	switch {
	case known && p.Want.MountID != p.Stack[0].ID:
		return gap{c.LastSeen, now}
	case known && p.Want.Since != 0 && (started || now-p.Want.Since < startGrace):
		return gap{p.Want.Away, p.Want.Since}
	case started:
		return gap{now, now} // nothing is known of before
	}
	return gap{}
}

// startedMeanwhile reports whether a container that cannot be inspected started while its pod's mount
// point may have had another mount than now, or none. Where the walk over the processes was cut short,
// that may be any container: the record would say that there is none, and nobody would look for it again.
func (o *observation) startedMeanwhile(u facts.Unverified, needScan []healer.MountPoint) bool {
	return slices.ContainsFunc(needScan, func(p healer.MountPoint) bool {
		known := p.Mounted() && p.Want != nil && o.c.RecordOfThisBoot() // else nothing is known of before
		return u.Why == facts.WhyScanCut || known && u.PodUID == p.PodUID && u.ContainerID != "" && gapAt(o.c, p).has(u.Started)
	})
}

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
		running, err := o.node.InPods(ctx)
		if err != nil {
			return healer.Failed("look for the containers that have the volume", err)
		}
		until := node.SinceBoot()
		if f, known := o.c.PreviousOf(p.Want.Dev); known {
			until = f.Since
		}
		for _, r := range running {
			if may := r.PodUID == p.PodUID && !r.Pause || r.PodUID == ""; may && r.Started <= until {
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
	if !now.Same(*c.Record) {
		_ = e.write(ctx, now)
	}
}
