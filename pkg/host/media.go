package host

import (
	"context"
	"math/bits"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// A look reads a device's first block. mediaInterval is how often the last one and
// one in between are read, too; mediaRetry how often while that fails: a disk may
// take long over a block that it cannot read, and then others wait for it.
const (
	mediaInterval = time.Hour
	mediaRetry    = 10 * time.Second
	mediaBlock    = 4096
)

// MediaError is a block that cannot be read of a device whose first one can.
type MediaError struct {
	// Offset is in bytes.
	Offset int64
	// Errno is 0 when there was no answer in time.
	Errno syscall.Errno
}

// mediaCheck is what became of the last reading of a disk.
type mediaCheck struct {
	diskSeq, size uint64
	at            time.Time
	// mount point is where a block was read besides the last one.
	mountPoint int64
	failed     []MediaError
}

// due is true when the disk is to be read again.
func (c mediaCheck) due() bool {
	since, interval := time.Since(c.at), mediaInterval
	if c.failed != nil {
		interval = mediaRetry
	}
	return since >= interval || since < 0
}

// readMedia reads the blocks of a device that are due, when a look has found it
// well, and gives those that could not be read the last time: a failure is
// remembered until the same block can be read. It is part of the look, so that one
// worker at a time is at the storage, and of no measured time. A worker that cannot
// be ended is remembered, and nobody else is sent until it ends.
func (n *Node) readMedia(ctx context.Context, m Mount, s Inspection) []MediaError {
	dev := m.Dev
	if s.Kind == KindBlock || m.Dev.Major == 0 {
		dev = s.Rdev
	}
	disk := s.Opened
	if !disk.Open || disk.Size < 2*mediaBlock || s.Answer.Errno != 0 || dev.Zero() {
		return nil
	}
	check, _ := n.media.get(dev)
	if check.diskSeq != disk.DiskSeq || check.size != disk.Size {
		check = mediaCheck{diskSeq: disk.DiskSeq, size: disk.Size}
	}
	at := storage{dev: dev, root: "media"}
	name := "" // sysfs is asked only when it is due
	if check.due() && n.probes.left(at) == nil {
		name = n.cfg.Sysfs.Name(dev)
	}
	if name == "" {
		return check.failed
	}
	if check.failed == nil {
		check.mountPoint = mountPointOf(time.Now(), disk.Size)
	}
	q := workerops.MediaQuery{
		Device: "/dev/" + name, Major: dev.Major, Minor: dev.Minor,
		Offsets: []int64{int64(disk.Size) - mediaBlock, check.mountPoint},
	}
	a, err := worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Media, q)
	silent := silent(ctx, err)
	if err != nil && !silent {
		return check.failed // nobody was asked
	}
	n.probes.leave(at, Inspection{}, err)
	check.at, check.failed = time.Now(), nil
	for i, offset := range q.Offsets {
		if silent || i < len(a.Errnos) && a.Errnos[i] != 0 {
			e := MediaError{Offset: offset}
			if !silent {
				e.Errno = a.Errnos[i]
			}
			check.failed = append(check.failed, e)
		}
	}
	n.media.add(dev, check)
	return check.failed
}

// mountPointOf gives the offset of a block between the first and the last: within an
// hour always the same one, and over time all parts of the device.
func mountPointOf(now time.Time, size uint64) int64 {
	hour := uint64(now.Unix() / int64(mediaInterval/time.Second))
	// The multiples of the golden ratio, modulo 1, spread evenly.
	block, _ := bits.Mul64(hour*0x9e3779b97f4a7c15, size/mediaBlock)
	return int64(block) * mediaBlock
}
