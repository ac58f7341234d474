package host

import (
	"slices"
	"time"
)

// recentLooks keeps what the last look at a mount gave beside the answer of its
// storage: kubelet's files and the space left. Both are read again after a
// second. What is behind the mount is asked in every call: the block device of
// an ext4, and nothing at all for a filesystem that lives in memory.
type recentLooks struct{ kept[uint64, recentLook] }

type recentLook struct {
	at    time.Time
	paths []Ask
	sight Sight
}

// recently is how old a look may be.
const recently = time.Second

// inMemory are filesystem types without anything behind them.
var inMemory = []string{"tmpfs", "ramfs"}

// onOneDevice are those that keep their root in memory while they are mounted:
// to touch it says nothing, and their device says it all. (xfs is none: only a
// touch shows its shutdown.)
var onOneDevice = []string{"ext2", "ext3", "ext4"}

// like gives the last look that asked the same of the same mount.
func (r *recentLooks) like(q Question) (Sight, bool) {
	look, known := r.of(q.Probe.ID)
	if !known || time.Since(look.at) >= recently || !slices.Equal(look.paths, q.Paths) {
		return Sight{}, false
	}
	return look.sight, true
}

// note keeps a look at mount points that found nothing wrong. It is as old as its
// first system call may be, which is not when it ended: a device may take long.
func (r *recentLooks) note(q Question, s Sight, began time.Time) {
	fit := slices.Contains(inMemory, q.Probe.FSType) || slices.Contains(onOneDevice, q.Probe.FSType) && s.Opened.Open
	elsewhere := slices.ContainsFunc(q.Paths, func(a Ask) bool { return !a.Mounted })
	if q.Probe.ID == 0 || !fit || elsewhere || s.Kind != KindDirectory || s.Answer.Errno != 0 {
		return
	}
	r.keep(q.Probe.ID, recentLook{at: began, paths: q.Paths, sight: s})
}
