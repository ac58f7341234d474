package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// previousGrace is for how long containers are scanned for a previous superblock after none was
// found with it: a container that was starting during a scan may have been overlooked.
const previousGrace = time.Minute

// The most previous superblocks of one volume, and the most mounts that are recorded of
// each.
const (
	maxPrevious       = 16
	maxPreviousMounts = 1024
)

// previousSuperblocks returns the superblocks that containers may still have of the
// volume, although its mount points have others: those of dead mounts above a healthy
// one, and those of the record of this boot.
func previousSuperblocks(c healer.Case) []facts.Dev {
	var all []facts.Dev
	working := map[facts.Dev]bool{}
	for _, p := range c.MountPoints {
		if top, mounted := p.Top(); mounted && p.Proven {
			if c.Superblock(p).Works() {
				working[top.Dev] = true
			} else {
				all = append(all, top.Dev)
			}
			for _, m := range p.Stack[1:] {
				all = append(all, m.Dev)
			}
		}
	}
	if c.RecordOfThisBoot() {
		for _, p := range c.Record.MountPoints {
			all = append(all, p.Dev)
		}
	}
	for _, f := range c.PreviousOfBoot() {
		all = append(all, f.Dev)
	}
	slices.SortFunc(all, func(a, b facts.Dev) int { return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor)) })
	return slices.DeleteFunc(slices.Compact(all), func(d facts.Dev) bool { return d.Zero() || working[d] })
}

// lastReplaced returns when a superblock of the volume was last replaced, in time since the boot; zero
// if none was. A container that was there then may still have the previous one.
func lastReplaced(c healer.Case) (replaced time.Duration) {
	for _, f := range c.PreviousOfBoot() {
		replaced = max(replaced, f.Since)
	}
	if c.RecordOfThisBoot() && c.PodStayed() && slices.ContainsFunc(c.Record.MountPoints, func(p healer.MountPointRecord) bool { return gone(c, p.Dev) && !wentWithPod(c, p) }) {
		replaced = node.SinceBoot() // at some time until now: the record is written after this
	}
	return replaced
}

// wentWithPod reports whether a recorded mount point is a target that is no longer one of the volume. Where
// nothing is staged its superblock may have been its pod's alone, and no other pod had it.
func wentWithPod(c healer.Case, p healer.MountPointRecord) bool {
	_, stays := c.MountPoint(p.Path)
	return !stays && p.Role == healer.RoleTarget
}

// gone reports whether the host has a recorded superblock nowhere any more, and it is
// not known as a previous one.
func gone(c healer.Case, dev facts.Dev) bool {
	_, here := onHost(c, dev)
	return !here && !dev.Zero() && !c.Replaced(dev)
}

// onHost returns the proven mount point of the volume at which the host has a
// superblock.
func onHost(c healer.Case, dev facts.Dev) (path string, found bool) {
	for _, p := range c.MountPoints {
		if p.Proven && hasDev(p.Stack, dev) {
			return p.Path, true
		}
	}
	return "", false
}

func hasDev(stack []facts.Mount, dev facts.Dev) bool {
	return slices.ContainsFunc(stack, func(m facts.Mount) bool { return m.Dev == dev })
}

// recordedMount returns what the record says of a container's mount: of that mount itself (same),
// or where m may be the clone that an interrupted replacement left (left), of the mount that was
// to be replaced at its path: its attributes are those that the clone is to get.
func recordedMount(c healer.Case, m facts.ContainerMount) (healer.PreviousMount, bool) {
	for _, f := range c.PreviousOfBoot() {
		for _, seen := range f.Mounts {
			there := seen.Namespace == m.Namespace && seen.Path == m.Mount.Path
			same := seen.ID == m.Mount.ID && f.Dev == m.Mount.Dev && (seen.ID != 0 || there)
			another := f.Dev != m.Mount.Dev || facts.IsNFS(m.Mount.FSType)
			left := another && (seen.ID < m.Mount.ID || m.Mount.ID == 0) && there
			if same || left {
				return seen, true
			}
		}
	}
	return healer.PreviousMount{}, false
}

// savePrevious puts into the record what is lost with a step that replaces a mount: its
// superblock with what containers have of it, and how the mount point was mounted. It reports
// whether there is such a thing. Where that cannot be saved, all steps go on but a restage: the
// next call would not know that one began, and have the driver start a second daemon on the
// same storage beside the first.
func (e *Engine) savePrevious(ctx context.Context, c *healer.Case, s healer.Step) (found bool, err error) {
	p := s.MountPoint
	inContainer := p.InContainer != nil
	if c.Record == nil || s.Cost != healer.Replace && s.Cost != healer.Restage || len(p.Stack) == 0 || !inContainer && !p.Proven {
		return false, nil
	}
	now := *c.Record
	if now.Restaging = s.Cost == healer.Restage || c.Restaging(); now.Restaging && !c.Restaging() {
		now.RestagingSince = c.Began
	}
	now.MountPoints, now.Previous = slices.Clone(now.MountPoints), c.PreviousOfBoot()
	top := p.Stack[0]
	if !inContainer && now.MountPoint(p.Path) == nil {
		now.MountPoints = append(now.MountPoints, healer.MountPointRecord{
			Role: p.Role, Path: p.Path, Root: top.Root, Attr: top.Attr, Propagation: top.Propagation, Dev: top.Dev, MountID: top.ID, Source: sourceOf(top),
		})
	}
	for i, m := range p.Stack {
		// A dead mount may lie beneath one that works.
		alike := m.FSType == top.FSType && m.Source == top.Source
		if i == 0 && (m.Dev != s.Source || p.Stale()) || i > 0 && alike && !c.Superblocks[m.Dev].Works() {
			f := addPrevious(&now, *c, m.Dev)
			if !inContainer {
				f.Since = node.SinceBoot()
			}
		}
	}
	if inContainer && now.Same(*c.Record) {
		return true, nil
	}
	c.Record = &now // which the next step of the batch adds to
	return true, e.write(ctx, now)
}

// saveAfter puts into the record, after a step, whether the driver may still be at work on what the
// step asked of it. It saves what the step replaced once more, with the present time as Since: a
// container that started until now may have that.
func (e *Engine) saveAfter(ctx context.Context, c healer.Case, s healer.Step, err error) {
	if s.MountPoint.InContainer != nil {
		return
	}
	before := c.Pending(s.Cost) // the record may have the call of this step by now
	e.reload(&c)
	changed := false
	var answer *healer.DriverError
	known := err == nil || errors.As(err, &answer) // else the driver was not asked, or its answer is not known
	if known && c.RecordOfThisBoot() && (s.Cost == healer.Restage || s.Cost == healer.Delegate) {
		var pending healer.PendingCall
		if err != nil && answer.Pending {
			pending = before.With(answer.PID, node.SinceBoot())
		}
		now := withPending(*c.Record, s.Cost, pending)
		changed = !now.Same(*c.Record)
		c.Record = &now
	}
	if saved, _ := e.savePrevious(ctx, &c, s); !saved && changed {
		_ = e.write(ctx, *c.Record)
	}
}

// reload gives the case the record with what was saved since the volume was observed. A step that
// saved the older one would take that back: what was staged again would count as not staged.
func (e *Engine) reload(c *healer.Case) {
	if saved, err := e.read(c.Driver, c.Volume.ID); err == nil && saved != nil {
		c.Record = saved
	}
}

// recordCall returns what puts a call of the driver, which a step is about to make, into the
// record: as long as no answer is recorded, the driver may be at work on it.
func (e *Engine) recordCall(c healer.Case, s healer.Step) healer.CallRecorder {
	return func(pid int, within time.Duration) error {
		if !c.RecordOfThisBoot() {
			return nil
		}
		now := withPending(*c.Record, s.Cost, c.Pending(s.Cost).With(pid, node.SinceBoot()+within))
		if err := e.cfg.Records.Save(now); err != nil {
			return fmt.Errorf("%w: it cannot be recorded that the driver is called: %w", healer.ErrRefused, err)
		}
		return nil
	}
}

func withPending(r healer.Record, cost healer.Cost, row healer.PendingCall) healer.Record {
	if cost == healer.Restage {
		r.PendingStage = row
	} else {
		r.PendingHeal = row
	}
	return r
}

// addPrevious records a superblock with the mounts that containers have of it.
func addPrevious(r *healer.Record, c healer.Case, dev facts.Dev) *healer.PreviousSuperblock {
	at := slices.IndexFunc(r.Previous, func(f healer.PreviousSuperblock) bool { return f.Dev == dev })
	if at < 0 {
		if len(r.Previous) == maxPrevious {
			r.Previous = r.Previous[1:]
		}
		at, r.Previous = len(r.Previous), append(r.Previous, healer.PreviousSuperblock{Dev: dev, BootID: c.BootID, Since: node.SinceBoot()})
	}
	f := r.Previous[at]
	f.Ended = f.Ended || c.Superblocks[dev].Shutdown
	switch _, here := onHost(c, dev); {
	case here:
		f.Newest = max(f.Newest, c.Newest)
	case r.BootID == c.BootID && r.HasDev(dev):
		f.Newest = max(f.Newest, r.NewestOf(dev))
	}
	f.Mounts = slices.Clone(f.Mounts)
	known := map[healer.PreviousMount]bool{} // all pods of a volume may have tens of thousands
	for _, m := range f.Mounts {
		known[mountKey(m)] = true
	}
	seen := slices.Clone(c.Lingering)
	for _, p := range c.MountPoints {
		if p.InContainer != nil {
			seen = append(seen, *p.InContainer)
		}
	}
	for _, in := range seen {
		m := in.Mount
		if m.Dev != dev || in.Proof == "" {
			continue
		}
		f.Newest = max(f.Newest, m.ID)
		now := healer.PreviousMount{ID: m.ID, Namespace: in.Namespace, Path: m.Path, Attr: m.Attr, Sharing: in.Sharing}
		if !known[mountKey(now)] && len(f.Mounts) < maxPreviousMounts {
			f.Mounts, known[mountKey(now)] = append(f.Mounts, now), true
		}
	}
	r.Previous[at] = f
	return &r.Previous[at]
}

// keepPrevious returns the previous superblocks that the new record of a usable volume still has to
// name, because a container has one or may have it.
func keepPrevious(c healer.Case, now healer.Record) []healer.PreviousSuperblock {
	if !c.RecordOfThisBoot() {
		return nil
	}
	was := *c.Record
	was.Previous = c.PreviousOfBoot()
	for _, p := range c.Record.MountPoints {
		// With the last pod that had it the volume was unstaged, or its own mount went: no container of another
		// pod can have that superblock.
		unstaged := gone(c, p.Dev) && (!c.PodStayed() || wentWithPod(c, p)) && !slices.ContainsFunc(c.Lingering, func(in healer.InContainer) bool { return in.Mount.Dev == p.Dev && in.Proof != "" })
		if !p.Dev.Zero() && !now.HasDev(p.Dev) && !unstaged {
			addPrevious(&was, c, p.Dev)
		}
	}
	for _, f := range was.Previous {
		if lingers(c, f) {
			addPrevious(&was, c, f.Dev)
		}
	}
	return slices.DeleteFunc(was.Previous, func(f healer.PreviousSuperblock) bool {
		age := node.SinceBoot() - f.Since
		return !lingers(c, f) && (now.HasDev(f.Dev) || age > previousGrace || age < 0)
	})
}

// lingers reports whether a mount beneath another one, or a container, has a previous superblock,
// or a container that cannot be inspected may have it.
func lingers(c healer.Case, f healer.PreviousSuperblock) bool {
	covered := func(p healer.MountPoint) bool { return p.Proven && len(p.Stack) > 1 && hasDev(p.Stack[1:], f.Dev) }
	return slices.ContainsFunc(c.MountPoints, covered) ||
		slices.ContainsFunc(c.Lingering, func(in healer.InContainer) bool { return in.Mount.Dev == f.Dev && in.Proof != "" }) ||
		slices.ContainsFunc(c.Unverified, func(u facts.Unverified) bool { return u.Started <= f.Since })
}

// mountKey is what distinguishes a mount from others: its unique id, or where the kernel has none
// (below Linux 6.8) its mount point.
func mountKey(m healer.PreviousMount) healer.PreviousMount {
	if m.ID != 0 {
		return healer.PreviousMount{ID: m.ID}
	}
	return healer.PreviousMount{Namespace: m.Namespace, Path: m.Path}
}
