package healer

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// startedBefore keeps the containers that were there when a superblock of the
// volume was replaced: they may still have the previous one.
func (c Case) startedBefore(all []host.Unverified) []host.Unverified {
	var replaced time.Duration
	for _, f := range c.previous() {
		if !f.NextPods {
			replaced = max(replaced, f.Since)
		}
	}
	if r := c.Record; r != nil && r.BootID == c.BootID && c.podStayed() && slices.ContainsFunc(r.MountPoints, func(p MountPointRecord) bool { return c.gone(p.Dev) }) {
		replaced = host.SinceBoot() // at some time until now: the record is written after this
	}
	return slices.DeleteFunc(slices.Clone(all), func(u host.Unverified) bool { return u.Started > replaced || replaced == 0 })
}

// podStayed is true while a pod has the volume that had it when the record was
// written. With the last of them the volume is unstaged, and what is staged for the
// next one is another superblock.
func (c Case) podStayed() bool {
	return slices.ContainsFunc(c.Record.MountPoints, func(p MountPointRecord) bool {
		_, stays := c.MountPoint(p.Path)
		return stays && p.Role == RoleTarget
	})
}

// gone is true for a recorded superblock that the host has nowhere any more, and
// that is not known as a previous one.
func (c Case) gone(dev host.Dev) bool {
	_, here := c.onHost(dev)
	return !here && !dev.Zero() && !slices.ContainsFunc(c.previous(), func(f PreviousSuperblock) bool { return f.Dev == dev })
}

// previousGrace is for how long a previous superblock is looked for after nothing has
// it any more: a container that was starting meanwhile may have been overlooked.
const previousGrace = time.Minute

// maxPrevious bounds the previous superblocks of one volume, and the mounts that are
// remembered of each.
const (
	maxPrevious       = 16
	maxPreviousMounts = 1024
)

// previousSuperblocks gives the superblocks that containers may still have of the
// volume, although its mount points have others: those of dead mount points above a healthy
// one, and those of the record of this boot.
func (c Case) previousSuperblocks() []host.Dev {
	var all []host.Dev
	working := map[host.Dev]bool{}
	for _, p := range c.MountPoints {
		if top, mounted := p.Top(); mounted && p.Proven {
			if works(c.Superblock(p)) {
				working[top.Dev] = true
			} else {
				all = append(all, top.Dev)
			}
			for _, m := range p.Stack[1:] {
				all = append(all, m.Dev)
			}
		}
	}
	if c.Record != nil && c.Record.BootID == c.BootID {
		for _, p := range c.Record.MountPoints {
			all = append(all, p.Dev)
		}
	}
	for _, f := range c.previous() {
		all = append(all, f.Dev)
	}
	slices.SortFunc(all, compareDev)
	return slices.DeleteFunc(slices.Compact(all), func(d host.Dev) bool { return d.Zero() || working[d] })
}

func compareDev(a, b host.Dev) int {
	if a.Major != b.Major {
		return int(a.Major) - int(b.Major)
	}
	return int(a.Minor) - int(b.Minor)
}

// works is true for a superblock that answered, and that did not shut down.
func works(sb host.Superblock) bool {
	return sb.Answer.Asked && !sb.Answer.Silent && sb.Answer.Errno == 0 && !sb.Shutdown
}

// previous gives what the record says of previous superblocks of this boot: device
// numbers of another one mean nothing.
func (c Case) previous() []PreviousSuperblock {
	if c.Record == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Record.Previous), func(f PreviousSuperblock) bool { return f.BootID != c.BootID })
}

// notePrevious puts into the record what is lost with a step that replaces a mount:
// its superblock with what containers have of it, and how the mount point was mounted.
// After a kill in the middle of the step nothing else would tell.
func (e *Engine) notePrevious(ctx context.Context, c Case, s Step) {
	if c.Record == nil || s.Cost != Replace || len(s.MountPoint.Stack) == 0 || s.MountPoint.InContainer == nil && !s.MountPoint.Proven {
		return
	}
	now := *c.Record
	if now.BootID == c.BootID {
		now.Newest = e.scanned.newestOf(volumeKey(c.Driver, c.Volume.ID), c.Record)
	}
	now.MountPoints, now.Previous = slices.Clone(now.MountPoints), c.previous()
	top := s.MountPoint.Stack[0]
	if s.MountPoint.InContainer == nil && now.MountPoint(s.MountPoint.Path) == nil {
		now.MountPoints = append(now.MountPoints, MountPointRecord{
			Role: s.MountPoint.Role, Path: s.MountPoint.Path, Root: top.Root, Attr: top.Attr, Propagation: top.Propagation, Dev: top.Dev, MountID: top.ID, Source: sourceOf(top),
		})
	}
	for i, m := range s.MountPoint.Stack {
		// A dead mount may lie beneath one that works.
		alike := m.FSType == top.FSType && m.Source == top.Source
		if i == 0 && (m.Dev != s.Source || s.MountPoint.Stale()) || i > 0 && alike && !works(c.Superblocks[m.Dev]) {
			f := now.addPrevious(c, m.Dev)
			if s.MountPoint.InContainer == nil {
				f.Since, f.NextPods = host.SinceBoot(), false
			}
		}
	}
	if s.MountPoint.InContainer != nil && now.same(*c.Record) {
		return
	}
	if err := e.cfg.Records.Save(now); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save what a mount was before it is replaced", "driver", c.Driver)
	}
}

// addPrevious notes a superblock with the mounts that containers have of it.
func (r *Record) addPrevious(c Case, dev host.Dev) *PreviousSuperblock {
	at := slices.IndexFunc(r.Previous, func(f PreviousSuperblock) bool { return f.Dev == dev })
	if at < 0 {
		if len(r.Previous) == maxPrevious {
			r.Previous = r.Previous[1:]
		}
		at, r.Previous = len(r.Previous), append(r.Previous, PreviousSuperblock{Dev: dev, BootID: c.BootID, Since: host.SinceBoot()})
	}
	f := r.Previous[at]
	f.Ended = f.Ended || c.Superblocks[dev].Shutdown
	switch _, here := c.onHost(dev); {
	case here:
		f.Newest = max(f.Newest, c.Newest)
	case r.BootID == c.BootID && slices.ContainsFunc(r.MountPoints, func(p MountPointRecord) bool { return p.Dev == dev }):
		f.Newest = max(f.Newest, r.Newest)
	}
	f.Mounts = slices.Clone(f.Mounts)
	known := map[PreviousMount]bool{}
	for _, m := range f.Mounts {
		known[m.key()] = true
	}
	for _, in := range c.insides() {
		m := in.Mount
		now := PreviousMount{ID: m.ID, Namespace: in.Namespace, Path: m.Path, Attr: m.Attr, Sharing: in.Sharing}
		if m.Dev == dev && in.Proof != "" && !known[now.key()] && len(f.Mounts) < maxPreviousMounts {
			f.Mounts = append(f.Mounts, now)
		}
	}
	r.Previous[at] = f
	return &r.Previous[at]
}

// ended is true for a mount of a filesystem that has shut itself down, as it says
// itself, or as it was found out while the host still had it.
func (c Case) ended(m host.Mount) bool {
	return host.StateOf(m).Shutdown || c.Superblocks[m.Dev].Shutdown ||
		slices.ContainsFunc(c.previous(), func(f PreviousSuperblock) bool { return f.Dev == m.Dev && f.Ended })
}

// Replaced is true for a superblock of this boot that the volume had before.
func (c Case) Replaced(dev host.Dev) bool {
	return slices.ContainsFunc(c.previous(), func(f PreviousSuperblock) bool { return f.Dev == dev })
}

// covers is true while a mount of a superblock lies beneath another one at a proven
// mount point.
func (c Case) covers(dev host.Dev) bool {
	return slices.ContainsFunc(c.MountPoints, func(p MountPoint) bool {
		return p.Proven && len(p.Stack) > 1 && slices.ContainsFunc(p.Stack[1:], func(m host.Mount) bool { return m.Dev == dev })
	})
}

// onHost gives the proven mount point of the volume at which the host has a superblock.
func (c Case) onHost(dev host.Dev) (path string, found bool) {
	for _, p := range c.MountPoints {
		if p.Proven && slices.ContainsFunc(p.Stack, func(m host.Mount) bool { return m.Dev == dev }) {
			return p.Path, true
		}
	}
	return "", false
}

// insides gives all mounts of the volume that were seen in containers.
func (c Case) insides() []InContainer {
	all := slices.Clone(c.Lingering)
	for _, p := range c.MountPoints {
		if p.InContainer != nil {
			all = append(all, *p.InContainer)
		}
	}
	return all
}

// noted gives the note of a mount in a container. For what may be left of an
// interrupted replacement it is that of the mount that was to be replaced there.
func (c Case) noted(m host.ContainerMount) (PreviousMount, bool) {
	for _, f := range c.previous() {
		for _, seen := range f.Mounts {
			there := seen.Namespace == m.Namespace && seen.Path == m.Mount.Path
			same := seen.ID == m.Mount.ID && f.Dev == m.Mount.Dev && (seen.ID != 0 || there)
			another := f.Dev != m.Mount.Dev || host.IsNFS(m.Mount.FSType)
			left := another && (seen.ID < m.Mount.ID || m.Mount.ID == 0) && there
			if same || left {
				return seen, true
			}
		}
	}
	return PreviousMount{}, false
}

// keepPrevious gives the previous superblocks that a healthy volume's new record still
// has to name.
func keepPrevious(c Case, now Record) []PreviousSuperblock {
	if c.Record == nil || c.Record.BootID != c.BootID {
		return nil
	}
	was := *c.Record
	was.Previous = c.previous()
	for _, p := range c.Record.MountPoints {
		if !p.Dev.Zero() && !slices.ContainsFunc(now.MountPoints, func(n MountPointRecord) bool { return n.Dev == p.Dev }) {
			gone := c.gone(p.Dev)
			f := was.addPrevious(c, p.Dev)
			f.NextPods = gone && !c.podStayed()
		}
	}
	lingers := func(f PreviousSuperblock) bool {
		return c.covers(f.Dev) || slices.ContainsFunc(c.Lingering, func(in InContainer) bool { return in.Mount.Dev == f.Dev && in.Proof != "" }) ||
			slices.ContainsFunc(c.Unverified, func(u host.Unverified) bool { return u.Started <= f.Since && !f.NextPods })
	}
	for _, f := range was.Previous {
		if lingers(f) {
			was.addPrevious(c, f.Dev)
		}
	}
	return slices.DeleteFunc(was.Previous, func(f PreviousSuperblock) bool {
		if lingers(f) {
			return false
		}
		back := slices.ContainsFunc(now.MountPoints, func(n MountPointRecord) bool { return n.Dev == f.Dev })
		age := host.SinceBoot() - f.Since
		return back || age > previousGrace || age < 0
	})
}
