package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxLookups bounds the superblocks whose last Lookup is remembered; a node has fewer.
const maxLookups = 4096

// lookedUp is the last answer of a FUSE superblock's daemon to a lookup.
type lookedUp struct {
	facts.Lookup
	// oldest is the unique id of the superblock's oldest mount, and volume whose it was: device numbers
	// are given out again. Below Linux 6.8 oldest is 0.
	oldest uint64
	volume key
	at     time.Time
}

// lookUp asks the daemon of each FUSE superblock that answers for its root for a name that cannot
// exist, if mustLookUp says so; else its last answer counts. A daemon answers for its root from
// memory, also when its storage is gone.
func (o *observation) lookUp(ctx context.Context) error {
	for _, p := range o.c.MountPoints {
		dev := p.Dev()
		sb, known := o.c.Superblocks[dev]
		if !known || sb.Lookup.Asked || !p.Mounted() || p.InContainer != nil || !facts.IsFUSE(sb.FSType) || !saysHealthy(sb) ||
			slices.Contains(o.engine.cfg.NoLookup, o.c.Driver) {
			continue
		}
		kept, _ := o.engine.lookups.Get(dev)
		last, _ := kept.(lookedUp)
		oldest := o.c.OldestMount(dev)
		// Without an id the volume may have another superblock with the number by now, of whose daemon a heal
		// would believe what the one before said.
		if last.oldest != oldest || oldest == 0 && (!o.lock.checks || last.volume != o.volumeKey()) {
			last = lookedUp{} // of another superblock
		}
		sb.Lookup = last.Lookup
		sb.Lookup.Earlier = last.Asked
		if o.mustLookUp(sb, last) {
			now, err := o.node.LookUp(ctx, p.Stack[0])
			switch {
			case err != nil: // the diagnosis goes by the probe alone
				klog.FromContext(ctx).Error(err, "Cannot have a name looked up", "driver", o.c.Driver)
			case facts.Disconnected(now.Errno) && o.topology:
				// Its daemon ended since it was probed, or lives and says so itself of its
				// storage: the next pass, which probes again, tells.
				return errMoved
			case now.Asked:
				sb.Lookup = now
				if now.NoSuchName() {
					o.remember(func(v *scannedVolume) { v.lookedUp = true })
				}
				o.engine.lookups.Add(dev, lookedUp{now, oldest, o.volumeKey(), time.Now()})
			}
		}
		o.c.Superblocks[dev] = sb
	}
	return nil
}

// mustLookUp reports whether the daemon of a superblock is asked now. An object store bills each
// question, and logs it as one that failed: the loop's checks ask only after a step, where
// something else is wrong, and once per LookupInterval.
func (o *observation) mustLookUp(sb healer.Superblock, last lookedUp) bool {
	interval := o.engine.cfg.LookupInterval
	return o.c.Volume.Named || !o.lock.checks && !last.Asked || o.c.LookupFailed(last.Lookup) || o.somethingWrong(sb) ||
		interval > 0 && time.Since(last.at) >= interval
}

// somethingWrong reports whether the volume is not as it should be elsewhere, or the superblock
// answered late.
func (o *observation) somethingWrong(sb healer.Superblock) bool {
	for _, p := range o.c.MountPoints {
		other, probed := o.c.Superblocks[p.Dev()]
		if p.Mounted() && probed && !saysHealthy(other) || !p.Mounted() && p.Want != nil {
			return true
		}
	}
	return sb.Answer.Late > 0
}
