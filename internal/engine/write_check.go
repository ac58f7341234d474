package engine

import (
	"cmp"
	"context"
	"errors"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// writeCheck tries a write on each superblock of which probes and facts leave open whether it can
// still be written to, at one of its mount points at which a write is permitted: a file without a name, in
// the root directory, which is gone when it is closed.
//
// Below Linux 6.15 no super option says that an ext4 has shut itself down, and reads succeed from
// memory. There fsync(2) is called on the root directory of an ext4 of which nothing is suspected:
// it fails after a shutdown, and writes nothing that was not about to be written.
func (o *observation) writeCheck(ctx context.Context) error {
	for _, p := range o.c.MountPoints {
		sb, known := o.c.Superblocks[p.Dev()]
		if !known || sb.Write.Asked || o.engine.cfg.NoWrite || !saysHealthy(sb) || p.Stale() || !o.writable(p) {
			continue
		}
		suspected, oldest := o.suspected(sb), o.c.OldestMount(p.Dev())
		if !suspected && (!o.engine.cfg.SyncExt4 || !facts.IsType(sb.FSType, facts.Ext)) {
			continue
		}
		if err := o.mayWrite(ctx, p, sb); err != nil {
			if suspected { // or it is no condition
				// The first mount point is the one that the caller named.
				sb.Write.Forbidden = cmp.Or(sb.Write.Forbidden, err.Error())
			} else if s := o.known.synced; s.oldest != 0 && s.oldest == oldest && s.ShutDown() {
				sb.Write, sb.Shutdown = s.Write, true // else a check would say healthy after a call that found it
			}
		} else {
			w, err := o.node.TryWrite(ctx, p.Stack[0], !suspected)
			if err != nil {
				return healer.Failed("try a write", err)
			}
			if sb.Shutdown = w.ShutDown(); suspected || sb.Shutdown {
				sb.Write = w
			}
			if sb.Shutdown || !suspected && !w.Unable && o.known.synced.oldest == oldest {
				o.remember(func(v *scannedVolume) { v.synced = synced{w, oldest} })
			}
			switch {
			case w.TimedOut:
				sb.Answer = w.Answer
			case w.Frozen: // what an overlay writes to, say
				sb.Answer.Frozen, sb.Answer.Waits = true, w.Waits
			}
		}
		o.c.Superblocks[p.Dev()] = sb
	}
	return nil
}

func saysHealthy(sb healer.Superblock) bool {
	return sb.Answer.Asked && !sb.Answer.TimedOut && sb.Answer.Errno == 0 && !sb.Answer.Frozen && sb.Kind == facts.KindDirectory && !sb.Shutdown
}

// writable reports whether an ordinary writer could write through a mount point.
func (o *observation) writable(p healer.MountPoint) bool {
	if !p.Mounted() || p.Stack[0].Attr.Has(facts.AttrReadOnly) || o.c.Volume.ReadersOnly && p.Stack[0].SuperReadOnly {
		return false
	}
	if o.c.Volume.Capability != nil && o.c.Volume.Capability.ReadOnly {
		return false
	}
	return p.Want == nil || !p.Want.ReadOnlySuper
}

// suspected reports whether a write would tell more than the probe, which succeeded.
func (o *observation) suspected(sb healer.Superblock) bool {
	upper := sb.Upper != nil && (sb.Upper.Shutdown || sb.Upper.ReadOnly || sb.Upper.EmergencyReadOnly)
	return upper || sb.ReadOnly || sb.EmergencyReadOnly || healer.ErrorsRose(o.c, sb)
}

// mayWrite says why no write must be tried.
func (o *observation) mayWrite(ctx context.Context, p healer.MountPoint, sb healer.Superblock) error {
	if err := o.engine.mayChange(o.lock); err != nil {
		return err
	}
	if facts.IsType(sb.FSType, facts.NoDisk) { // an overlay lies on whatever its upper directory lies on
		return o.engine.cfg.Gate.Write(ctx, o.c, p, false) // no disk that another node could own
	}
	if sb = o.engine.identified(o.c, p.Dev()).Superblocks[p.Dev()]; sb.Device != nil && o.c.Record != nil {
		if differs := healer.DiffersSoFar(o.c.Record.Identity, sb); differs != "" {
			return errors.New(differs)
		}
	}
	return o.engine.cfg.Gate.Write(ctx, o.c, p, true)
}
