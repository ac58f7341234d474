package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// recordInterval is how often an unchanged record is written anyway, so that its
// times mean something.
const recordInterval = time.Hour

// recordIntervalFUSE is shorter: a mount in a container is proven to be the volume's if
// it was there when the record was written.
const recordIntervalFUSE = 5 * time.Minute

// save keeps on disk what the next calls need.
func (e *Engine) save(ctx context.Context, d healer.Diagnosis, lock *volumeLock) error {
	unusable := func(c healer.Condition) bool { return c.Disables() || c.Ambiguous }
	// Another check that has saved since this one began may have seen newer mounts: the id that it saw must not
	// stand beside older ones, or another volume's mount counts as this volume's. The next check saves.
	alone := func(save func()) error {
		return lock.alone(func() {
			if e.scanned.get(volumeKey(d.Case.Driver, d.Case.Volume.ID)).saved <= d.Case.Began {
				save()
			}
		})
	}
	var err error
	switch r := d.Case.Record; {
	case len(d.Failures) == 0 && !slices.ContainsFunc(d.Conditions, unusable):
		err = alone(func() { e.saveRecord(ctx, d) })
	case r != nil && r.Restaging && d.Case.StagedAnswers():
		now := *r // what is staged has answered again
		now.Restaging, now.PendingStage = false, healer.PendingCall{}
		err = alone(func() { _ = e.write(ctx, now) })
	}
	if err != nil {
		return err
	}
	if d.Sick() && len(d.Case.OnOldDevice) > 0 {
		return alone(func() { e.saveOldDevices(ctx, d.Case) })
	}
	return nil
}

// saveRecord saves what a usable volume looks like, if that differs from the record.
func (e *Engine) saveRecord(ctx context.Context, d healer.Diagnosis) {
	c := d.Case
	volume, now := volumeKey(c.Driver, c.Volume.ID), newRecord(c)
	if said := c.Volume.Capability; d.Sick() || said != nil && said.ReadOnly {
		keepBaselines(&now, c.Record) // that it is to be read-only is this caller's word, and not for later calls
	}
	if now.FSType == "" {
		return // nothing is proven
	}
	for _, sb := range c.Superblocks {
		if sb.Device != nil && !sb.Device.Known() {
			return // the recorded identity would be lost
		}
	}
	interval := recordInterval
	if facts.IsFUSE(now.FSType) {
		interval = recordIntervalFUSE
	}
	old := c.Record
	if old == nil || time.Since(old.LastSeen) >= interval || time.Since(old.LastSeen) < 0 || !now.Same(*old) {
		if e.write(ctx, now) != nil {
			return // the volume works all the same; only a later heal will miss it
		}
	}
	e.scanned.change(volume, func(v *scannedVolume) {
		v.saved, v.healthy, v.newest = node.SinceBoot(), c.Began, max(v.newest, c.Newest)
	})
}

// read returns a volume's record. Newest is that of the last check, which is in memory and only now
// and then on the disk.
func (e *Engine) read(driver, volumeID string) (*healer.Record, error) {
	// First: that of a check which saves meanwhile must not stand beside older mount points.
	newest := e.scanned.get(volumeKey(driver, volumeID)).newest
	r, err := e.cfg.Records.Load(driver, volumeID)
	if r == nil || r.BootID != e.cfg.Node.BootID() {
		return r, err
	}
	now := *r
	now.Newest = max(now.Newest, newest)
	return &now, err
}

// write puts a record on the disk. An error is logged.
func (e *Engine) write(ctx context.Context, r healer.Record) error {
	err := e.cfg.Records.Save(r)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save the record of a volume", "driver", r.Driver)
		return err
	}
	e.scanned.change(volumeKey(r.Driver, r.VolumeID), func(v *scannedVolume) { v.saved = node.SinceBoot() })
	return nil
}

// keepBaselines takes from the last record what a volume is compared with that is usable and
// sick: else the next check would take what is wrong now, as read-only mounts, for right.
func keepBaselines(r *healer.Record, was *healer.Record) {
	if was != nil {
		r.FilesystemErrors = was.FilesystemErrors
		if was.Identity.Size > 0 {
			r.Identity.Size = was.Identity.Size
		}
	}
	for i := range r.MountPoints {
		p := &r.MountPoints[i]
		if before := was.MountPoint(p.Path); before != nil {
			p.Attr, p.ReadOnlySuper, p.HadBlocks, p.HadInodes = before.Attr, before.ReadOnlySuper, before.HadBlocks, before.HadInodes
		} else {
			// Else it was not asked for, but of a raw block volume, whose mount does not say.
			node := facts.Mount{FSType: r.FSType, Root: p.Root}.MayBeNode() && !was.WasWritable(r.BootID, r.DiskSeq)
			p.ReadOnlySuper = p.ReadOnlySuper && (p.Attr.Has(facts.AttrReadOnly) || node)
		}
	}
}

// sourceOf returns the source of a mount whose number is no device's: on NFS nothing else says which directory of
// the server it shows, and where nothing is staged each pod's mount may name a server of its own.
func sourceOf(m facts.Mount) string {
	if m.OnDevice() {
		return ""
	}
	return m.Source
}

// newRecord describes what is proven of a case.
func newRecord(c healer.Case) healer.Record {
	r := healer.Record{
		Version:  healer.RecordVersion,
		Driver:   c.Driver,
		VolumeID: c.Volume.ID,
		BootID:   c.BootID,
		LastSeen: time.Now().UTC().Truncate(time.Second),
		Newest:   c.Newest,
	}
	// The staged superblock is the volume's own; a driver may publish something that it
	// made of it, such as an overlay.
	staged, _ := c.Staged()
	for _, p := range c.MountPoints {
		if !recordableAt(p) {
			continue
		}
		if r.FSType == "" || p.Path == staged.Path {
			setSuperblock(&r, c, c.Superblocks[p.Dev()])
			r.Source = p.Stack[0].Source // the superblock has that of the mount probed first
		}
		r.MountPoints = append(r.MountPoints, newMountPointRecord(c, p))
	}
	r.Previous = keepPrevious(c, r) // what only a dormant mount point has is a previous one, too
	for _, p := range c.Dormant {
		if !c.RecordOfThisBoot() { // the numbers of another boot would be taken for those of this one
			p.Dev, p.Newest, p.MountID, p.Since, p.Away = facts.Dev{}, 0, 0, 0, 0
		} else if _, here := onHost(c, p.Dev); here {
			p.Newest = 0
		} else {
			p.Newest = cmp.Or(p.Newest, c.Record.Newest)
		}
		r.MountPoints = append(r.MountPoints, p)
	}
	// Whichever mount point the caller named, the record is the same.
	slices.SortFunc(r.MountPoints, func(a, b healer.MountPointRecord) int { return cmp.Compare(a.Path, b.Path) })
	if r.Restaging = c.Restaging(); r.Restaging {
		r.RestagingSince = c.Record.RestagingSince
	}
	r.PendingStage, r.PendingHeal = c.Pending(healer.Restage), c.Pending(healer.Delegate)
	return r
}

// recordableAt reports whether a mount point is proven and has a mount of its own of which it is
// known how it is to be mounted: of a placeholder only the record tells. A subPath is recorded only
// while it is replaced.
func recordableAt(p healer.MountPoint) bool {
	unfinished := p.Unfinished()
	return p.Proven && p.Mounted() && p.Role != healer.RoleContainer &&
		(!unfinished || p.Want != nil) && (unfinished || p.Layout.Kind != layout.Subpath)
}

func setSuperblock(r *healer.Record, c healer.Case, sb healer.Superblock) {
	r.FSType = sb.FSType
	if sb.Device != nil {
		r.Identity, r.DiskSeq = sb.Device.Identity, sb.Device.DiskSeq
	}
	r.FilesystemErrors = healer.ErrorsCounted(sb)
	if sb.Errors == nil && c.Record != nil {
		r.FilesystemErrors = c.Record.FilesystemErrors // the count cannot be read now
	}
	if c.Record == nil && healer.ErrorsRose(c, sb) {
		r.FilesystemErrors = 0
	}
}

func newMountPointRecord(c healer.Case, p healer.MountPoint) healer.MountPointRecord {
	sb, top := c.Superblocks[p.Dev()], p.Stack[0]
	if p.Unfinished() { // what the interrupted step is to give it
		top.Attr, top.Propagation = p.Want.Attr, p.Want.Propagation
	}
	gap := gapAt(c, p)
	return healer.MountPointRecord{
		Role:          p.Role,
		Path:          p.Path,
		Root:          top.Root,
		Attr:          top.Attr,
		Propagation:   top.Propagation,
		ReadOnlySuper: sb.ReadOnly || sb.ProtectedBlock(),
		Dev:           p.Dev(),
		MountID:       top.ID,
		Source:        sourceOf(top),
		HadBlocks:     sb.Space.Available > 0 || p.Want != nil && p.Want.HadBlocks,
		HadInodes:     sb.Space.FreeFiles > 0 || p.Want != nil && p.Want.HadInodes,
		Since:         gap.until,
		Away:          gap.from,
	}
}
