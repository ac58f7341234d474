package healer

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// startedBefore keeps the containers that were there when a superblock of the
// volume was replaced: they may still have the former one.
func (c Case) startedBefore(all []host.Unverified) []host.Unverified {
	var replaced time.Duration
	for _, f := range c.former() {
		if !f.NextPods {
			replaced = max(replaced, f.Since)
		}
	}
	if r := c.Record; r != nil && r.BootID == c.BootID && c.podStayed() && slices.ContainsFunc(r.Places, func(p PlaceRecord) bool { return c.gone(p.Dev) }) {
		replaced = host.SinceBoot() // at some time until now: the record is written after this
	}
	return slices.DeleteFunc(slices.Clone(all), func(u host.Unverified) bool { return u.Started > replaced || replaced == 0 })
}

// podStayed is true while a pod has the volume that had it when the record was
// written. With the last of them the volume is unstaged, and what is staged for the
// next one is another superblock.
func (c Case) podStayed() bool {
	return slices.ContainsFunc(c.Record.Places, func(p PlaceRecord) bool {
		_, stays := c.Place(p.Path)
		return stays && p.Role == Published
	})
}

// gone is true for a recorded superblock that the host has nowhere any more, and
// that is not known as a former one.
func (c Case) gone(dev host.Dev) bool {
	_, here := c.onHost(dev)
	return !here && !dev.Zero() && !slices.ContainsFunc(c.former(), func(f FormerSuperblock) bool { return f.Dev == dev })
}

// formerGrace is for how long a former superblock is looked for after nothing has
// it any more: a container that was starting meanwhile may have been overlooked.
const formerGrace = time.Minute

// maxFormer bounds the former superblocks of one volume, and the mounts that are
// remembered of each.
const (
	maxFormer       = 16
	maxFormerMounts = 1024
)

// formerSuperblocks gives the superblocks that containers may still have of the
// volume, although its places have others: those of dead places above a healthy
// one, and those of the record of this boot.
func (c Case) formerSuperblocks() []host.Dev {
	var all []host.Dev
	working := map[host.Dev]bool{}
	for _, p := range c.Places {
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
		for _, p := range c.Record.Places {
			all = append(all, p.Dev)
		}
	}
	for _, f := range c.former() {
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

// former gives what the record says of former superblocks of this boot: device
// numbers of another one mean nothing.
func (c Case) former() []FormerSuperblock {
	if c.Record == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Record.Former), func(f FormerSuperblock) bool { return f.BootID != c.BootID })
}

// noteFormer puts into the record what is lost with a step that replaces a mount:
// its superblock with what containers have of it, and how the place was mounted.
// After a kill in the middle of the step nothing else would tell.
func (e *Engine) noteFormer(ctx context.Context, c Case, s Step) {
	if c.Record == nil || s.Cost != Replace || len(s.Place.Stack) == 0 || s.Place.Inside == nil && !s.Place.Proven {
		return
	}
	now := *c.Record
	if now.BootID == c.BootID {
		now.Newest = e.looked.newestOf(volumeKey(c.Driver, c.Volume.ID), c.Record)
	}
	now.Places, now.Former = slices.Clone(now.Places), c.former()
	top := s.Place.Stack[0]
	if s.Place.Inside == nil && now.Place(s.Place.Path) == nil {
		now.Places = append(now.Places, PlaceRecord{
			Role: s.Place.Role, Path: s.Place.Path, Root: top.Root, Attr: top.Attr, Propagation: top.Propagation, Dev: top.Dev, MountID: top.ID, Source: sourceOf(top),
		})
	}
	for i, m := range s.Place.Stack {
		// A dead mount may lie beneath one that works.
		alike := m.FSType == top.FSType && m.Source == top.Source
		if i == 0 && (m.Dev != s.Source || s.Place.Stale()) || i > 0 && alike && !works(c.Superblocks[m.Dev]) {
			f := now.addFormer(c, m.Dev)
			if s.Place.Inside == nil {
				f.Since, f.NextPods = host.SinceBoot(), false
			}
		}
	}
	if s.Place.Inside != nil && now.same(*c.Record) {
		return
	}
	if err := e.cfg.Records.Save(now); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save what a mount was before it is replaced", "driver", c.Driver)
	}
}

// addFormer notes a superblock with the mounts that containers have of it.
func (r *Record) addFormer(c Case, dev host.Dev) *FormerSuperblock {
	at := slices.IndexFunc(r.Former, func(f FormerSuperblock) bool { return f.Dev == dev })
	if at < 0 {
		if len(r.Former) == maxFormer {
			r.Former = r.Former[1:]
		}
		at, r.Former = len(r.Former), append(r.Former, FormerSuperblock{Dev: dev, BootID: c.BootID, Since: host.SinceBoot()})
	}
	f := r.Former[at]
	f.Ended = f.Ended || c.Superblocks[dev].Shutdown
	switch _, here := c.onHost(dev); {
	case here:
		f.Newest = max(f.Newest, c.Newest)
	case r.BootID == c.BootID && slices.ContainsFunc(r.Places, func(p PlaceRecord) bool { return p.Dev == dev }):
		f.Newest = max(f.Newest, r.Newest)
	}
	f.Mounts = slices.Clone(f.Mounts)
	known := map[FormerMount]bool{}
	for _, m := range f.Mounts {
		known[m.key()] = true
	}
	for _, in := range c.insides() {
		m := in.Mount
		now := FormerMount{ID: m.ID, Namespace: in.Namespace, Path: m.Path, Attr: m.Attr, Sharing: in.Sharing}
		if m.Dev == dev && in.Proof != "" && !known[now.key()] && len(f.Mounts) < maxFormerMounts {
			f.Mounts = append(f.Mounts, now)
		}
	}
	r.Former[at] = f
	return &r.Former[at]
}

// ended is true for a mount of a filesystem that has shut itself down, as it says
// itself, or as it was found out while the host still had it.
func (c Case) ended(m host.Mount) bool {
	return host.StateOf(m).Shutdown || c.Superblocks[m.Dev].Shutdown ||
		slices.ContainsFunc(c.former(), func(f FormerSuperblock) bool { return f.Dev == m.Dev && f.Ended })
}

// Replaced is true for a superblock of this boot that the volume had before.
func (c Case) Replaced(dev host.Dev) bool {
	return slices.ContainsFunc(c.former(), func(f FormerSuperblock) bool { return f.Dev == dev })
}

// covers is true while a mount of a superblock lies beneath another one at a proven
// place.
func (c Case) covers(dev host.Dev) bool {
	return slices.ContainsFunc(c.Places, func(p Place) bool {
		return p.Proven && len(p.Stack) > 1 && slices.ContainsFunc(p.Stack[1:], func(m host.Mount) bool { return m.Dev == dev })
	})
}

// onHost gives the proven place of the volume at which the host has a superblock.
func (c Case) onHost(dev host.Dev) (path string, found bool) {
	for _, p := range c.Places {
		if p.Proven && slices.ContainsFunc(p.Stack, func(m host.Mount) bool { return m.Dev == dev }) {
			return p.Path, true
		}
	}
	return "", false
}

// insides gives all mounts of the volume that were seen in containers.
func (c Case) insides() []Inside {
	all := slices.Clone(c.Lingering)
	for _, p := range c.Places {
		if p.Inside != nil {
			all = append(all, *p.Inside)
		}
	}
	return all
}

// noted gives the note of a mount in a container. For what may be left of an
// interrupted replacement it is that of the mount that was to be replaced there.
func (c Case) noted(m host.ContainerMount) (FormerMount, bool) {
	for _, f := range c.former() {
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
	return FormerMount{}, false
}

// keepFormer gives the former superblocks that a healthy volume's new record still
// has to name.
func keepFormer(c Case, now Record) []FormerSuperblock {
	if c.Record == nil || c.Record.BootID != c.BootID {
		return nil
	}
	was := *c.Record
	was.Former = c.former()
	for _, p := range c.Record.Places {
		if !p.Dev.Zero() && !slices.ContainsFunc(now.Places, func(n PlaceRecord) bool { return n.Dev == p.Dev }) {
			gone := c.gone(p.Dev)
			f := was.addFormer(c, p.Dev)
			f.NextPods = gone && !c.podStayed()
		}
	}
	lingers := func(f FormerSuperblock) bool {
		return c.covers(f.Dev) || slices.ContainsFunc(c.Lingering, func(in Inside) bool { return in.Mount.Dev == f.Dev && in.Proof != "" }) ||
			slices.ContainsFunc(c.Unverified, func(u host.Unverified) bool { return u.Started <= f.Since && !f.NextPods })
	}
	for _, f := range was.Former {
		if lingers(f) {
			was.addFormer(c, f.Dev)
		}
	}
	return slices.DeleteFunc(was.Former, func(f FormerSuperblock) bool {
		if lingers(f) {
			return false
		}
		back := slices.ContainsFunc(now.Places, func(n PlaceRecord) bool { return n.Dev == f.Dev })
		age := host.SinceBoot() - f.Since
		return back || age > formerGrace || age < 0
	})
}
