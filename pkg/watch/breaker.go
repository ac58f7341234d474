package watch

import (
	"cmp"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/mount"
	"github.com/csi-addons/node-healer/pkg/retry"
)

const (
	// manySick is how many volumes of one backend are no coincidence.
	manySick = 3
	// trialBackoff is the time after the first trial that failed; each further one
	// doubles it.
	trialBackoff = 5 * time.Second
)

// breaker keeps the volumes of one backend from being healed all at once while it may be
// the backend that fails: one heal is tried, and each that succeeds doubles how many may
// run.
type breaker struct {
	// allowed is how many heals may run at once.
	allowed int
	// running has those that run.
	running int
	// failures counts the trials that failed in a row; until is when the next may begin.
	failures int
	until    time.Time
}

// open reports whether so many volumes of the backend are sick that heals are held back.
func (b *breaker) open(sick int) bool { return sick >= manySick }

// mayBegin reports whether a heal may begin; if not, it returns when to ask again, which
// is zero where a heal that ends tells it.
func (b *breaker) mayBegin(now time.Time, sick int) (ask time.Time, may bool) {
	switch {
	case !b.open(sick):
		return time.Time{}, true
	case now.Before(b.until):
		return b.until, false
	}
	return time.Time{}, b.running < max(b.allowed, 1)
}

// end takes over how a heal ended.
func (b *breaker) end(now time.Time, how outcome) {
	b.running--
	switch how {
	case succeeded:
		b.failures, b.until = 0, time.Time{}
		b.allowed = min(2*max(b.allowed, 1), maxVolumes)
	case failed:
		b.allowed, b.failures = 1, b.failures+1
		b.until = now.Add(retry.From(trialBackoff).AfterWithJitter(b.failures))
	case refused: // it says nothing of the backend
	}
}

// backendOf returns what a sick volume has in common with others: its server, else what its
// disk is a part of, else its driver.
func backendOf(r healer.Report, driver string) string {
	for _, sb := range r.After.Case.Superblocks {
		if server := mount.Server(sb.FSType, sb.Source); server != "" {
			return "server " + server
		}
		if pool := poolOf(sb.Device); pool != "" {
			return pool
		}
	}
	return "driver " + driver
}

// lvmGroupBytes is the length of a volume group's UUID, with which LVM begins the
// device-mapper UUID of each of its logical volumes, after lvmPrefix (lvmsystemid and
// dmsetup(8) show them).
const (
	lvmPrefix     = "LVM-"
	lvmGroupBytes = 32
)

// poolOf returns what several volumes may lie on: the volume group of a logical volume,
// or the disk of a partition; empty for a disk of its own.
func poolOf(d *host.BlockDevice) string {
	if d == nil {
		return ""
	}
	if group, is := strings.CutPrefix(d.Identity.DMUUID, lvmPrefix); is && len(group) >= lvmGroupBytes {
		return "volume group " + group[:lvmGroupBytes]
	}
	if disk := cmp.Or(d.Identity.WWID, d.Identity.Serial); d.Identity.Partition != "" && disk != "" {
		return "disk " + disk
	}
	return ""
}
