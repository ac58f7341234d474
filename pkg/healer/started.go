package healer

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/host"
)

// A container gets what stands at its pod's mount point when it starts: the directory
// beneath while nothing is mounted there, a read-only placeholder in the middle of a
// step. It keeps that, whatever is mounted at the mount point later.

// StartedWith is what a container has instead of the volume.
type StartedWith struct {
	// Place is the path on the host at which it was found.
	MountPoint string
	host.ContainerMount
}

// startGrace is how long a container may take from a copy of the host's mounts to
// mounts of its own.
const startGrace = time.Minute

// mountedAnew is true for a target whose mount is not the recorded one of
// this boot, or came less than startGrace before the containers were last looked into.
//
// Nobody has to look while it is the recorded one: unique mount ids are never given
// out again, so it was there all the time since the record was written, and whoever
// started meanwhile got it. A mount gets into the record for good only after a look
// that found nobody who has something else (see since). So as long as there is
// somebody, each look looks for them.
func (o *observation) mountedAnew(p MountPoint) bool {
	if p.Role != RoleTarget || p.Layout.Kind == host.LayoutSubpath || o.c.Block {
		return false
	}
	top, mounted := p.Top()
	switch {
	case !mounted, top.ID == 0: // without an id nothing tells
		return true
	case p.Want == nil || o.c.Record.BootID != o.c.BootID:
		return top.ID > o.engine.scanned.get(volumeKey(o.c.Driver, o.c.Volume.ID)).started
	}
	return p.Want.MountID != top.ID || p.Want.Since != 0
}

// anew gives the targets for which containers have to be looked into.
func (o *observation) anew() []MountPoint {
	return slices.DeleteFunc(slices.Clone(o.c.MountPoints), func(p MountPoint) bool { return !o.mountedAnew(p) })
}

// beneathMountPoint is the directory on which the mounts of a mount point stand.
func (o *observation) beneathMountPoint(p MountPoint) (host.Directory, bool) {
	parentMount, found := o.table.ParentMount(path.Dir(p.Path))
	return host.Directory{Dev: parentMount.Dev, Path: path.Join(parentMount.Root, strings.TrimPrefix(p.Path, parentMount.Path))}, found
}

// startedWith takes out of the mounts of containers what some of them got instead of
// the volume, and puts it into the case. now is the mount that works.
func (o *observation) startedWith(mounts []host.ContainerMount, anew []MountPoint, now host.Mount) (others []host.ContainerMount) {
	for _, m := range mounts {
		at := slices.IndexFunc(anew, func(p MountPoint) bool {
			dir, known := o.beneathMountPoint(p)
			return known && dir.Shown(m.Mount)
		})
		switch {
		case at >= 0:
			o.c.OnBare = append(o.c.OnBare, StartedWith{anew[at].Path, m})
		case o.placeholder(m, now):
			o.c.OnPlaceholder = append(o.c.OnPlaceholder, StartedWith{o.mountPointFor(m), m})
		default:
			others = append(others, m)
		}
	}
	if len(o.c.OnBare)+len(o.c.OnPlaceholder) == 0 {
		var newest uint64
		for _, p := range anew {
			if top, mounted := p.Top(); mounted {
				newest = max(newest, top.ID)
			}
		}
		o.engine.scanned.change(volumeKey(o.c.Driver, o.c.Volume.ID), func(at *lookedAt) { at.started = max(at.started, newest) })
	}
	return others
}

// placeholder is true for a mount that has the attributes of one of ours in the
// middle of a step, if nothing else explains them: what is noted of an interrupted
// replacement in the container, or a volume that is mounted like that.
func (o *observation) placeholder(m host.ContainerMount, now host.Mount) bool {
	want := now.Attr
	if p, _ := o.c.MountPoint(o.mountPointFor(m)); p.Want != nil {
		want = p.Want.Attr
	} else if top, mounted := p.Top(); mounted {
		want = top.Attr
	}
	_, noted := o.c.noted(m)
	return m.Mount.Dev == now.Dev && !noted && m.Mount.MaybePlaceholder(want)
}

// mountPointFor gives the target of a container's pod, else the first one.
func (o *observation) mountPointFor(m host.ContainerMount) string {
	for _, p := range o.c.MountPoints {
		if p.Role == RoleTarget && p.PodUID == m.PodUID {
			return p.Path
		}
	}
	return o.c.MountPoints[0].Path
}

// span is the time in which a mount that came to a mount point was not yet there, since the
// boot; it is zero once nothing depends on it.
type span struct{ from, until time.Duration }

// away gives the span for the present mount at a mount point, for the record, until the
// containers were looked into long enough after it.
func (c Case) away(p MountPoint) span {
	started := slices.ContainsFunc(slices.Concat(c.OnBare, c.OnPlaceholder), func(s StartedWith) bool { return s.MountPoint == p.Path }) ||
		slices.ContainsFunc(c.UnverifiedStart, func(u host.Unverified) bool { return u.PodUID == p.PodUID })
	known := p.Want != nil && c.Record.BootID == c.BootID
	now := host.SinceBoot()
	switch {
	case known && p.Want.MountID != p.Stack[0].ID:
		return span{c.lastSeen, now}
	case known && p.Want.Since != 0 && (started || now-p.Want.Since < startGrace):
		return span{p.Want.Away, p.Want.Since}
	case started:
		return span{now, now} // nothing is known of before
	}
	return span{}
}

// startedMeanwhile gives the containers that nobody can look into, and that started
// while their pod's mount point may have had another mount than now, or none.
func (o *observation) startedMeanwhile(all []host.Unverified, anew []MountPoint) (found []host.Unverified) {
	for _, p := range anew {
		if !p.Mounted() || p.Want == nil || o.c.Record.BootID != o.c.BootID {
			continue // nothing is known of before
		}
		s := o.c.away(p)
		for _, u := range all {
			if u.PodUID == p.PodUID && u.ContainerID != "" && s.from < u.Started && u.Started <= s.until {
				found = append(found, u)
			}
		}
	}
	return found
}
