package host

import (
	"context"
	"math/bits"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// A probe reads a device's first block. mediaInterval is how often the last one and
// one in between are read, too; mediaRetry how often while that fails: a disk may
// take long over a block that it cannot read, and other readers wait meanwhile.
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

// mediaCheck is the result of the last reading of a disk.
type mediaCheck struct {
	diskSeq, size uint64
	at            time.Time
	// middle is the offset of the block that was read besides the last one.
	middle int64
	failed []MediaError
}

// due reports whether the disk is to be read again.
func (c mediaCheck) due() bool {
	since, interval := time.Since(c.at), mediaInterval
	if c.failed != nil {
		interval = mediaRetry
	}
	return since >= interval || since < 0
}

// readMedia reads the blocks of a device that are due, when a probe has found it
// healthy, and returns those that could not be read the last time: a failure is kept
// until the same block can be read. It is part of the probe, so that one worker at a
// time is at the storage, and not of the measured time. While a worker cannot be
// ended, no other one reads.
func (n *Node) readMedia(ctx context.Context, m Mount, in Inspection) []MediaError {
	dev := m.Dev
	if in.Kind == KindBlock || m.Dev.Major == 0 {
		dev = in.Rdev
	}
	disk := in.Opened
	if !disk.Open || disk.Size < 2*mediaBlock || in.Answer.Errno != 0 || dev.Zero() {
		return nil
	}
	check, _ := n.media.get(dev)
	if check.diskSeq != disk.DiskSeq || check.size != disk.Size {
		check = mediaCheck{diskSeq: disk.DiskSeq, size: disk.Size}
	}
	at := storage{dev: dev, root: "media"}
	name := "" // sysfs is asked only when it is due
	if check.due() && n.probes.outstanding(at) == nil {
		name = n.cfg.Sysfs.Name(dev)
	}
	if name == "" {
		return check.failed
	}
	if check.failed == nil {
		check.middle = middleOf(time.Now(), disk.Size)
	}
	q := workerops.MediaQuery{
		Device: "/dev/" + name, Major: dev.Major, Minor: dev.Minor,
		Offsets: []int64{int64(disk.Size) - mediaBlock, check.middle},
	}
	a, err := worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Media, q)
	late := timedOut(ctx, err)
	if err != nil && !late {
		return check.failed // the device was not asked
	}
	n.probes.markStuck(at, Inspection{}, err)
	check.at, check.failed = time.Now(), nil
	for i, offset := range q.Offsets {
		if late || i < len(a.Errnos) && a.Errnos[i] != 0 {
			e := MediaError{Offset: offset}
			if !late {
				e.Errno = a.Errnos[i]
			}
			check.failed = append(check.failed, e)
		}
	}
	n.media.add(dev, check)
	return check.failed
}

// middleOf returns the offset of a block between the first and the last: within an
// hour always the same one, and over time all parts of the device.
func middleOf(now time.Time, size uint64) int64 {
	hour := uint64(now.Unix() / int64(mediaInterval/time.Second))
	// The multiples of the golden ratio, modulo 1, spread evenly.
	block, _ := bits.Mul64(hour*0x9e3779b97f4a7c15, size/mediaBlock)
	return int64(block) * mediaBlock
}
