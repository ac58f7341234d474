package fuse

import (
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// silence is how long a daemon has not answered: slow is not dead, so a single probe
// proves nothing.
type silence struct {
	// mount is the unique id of the oldest mount of the superblock: device numbers are
	// given out again.
	mount uint64
	// outstanding is when the call began that has had no answer over all the time: a
	// daemon that is only slow has answered it before the next.
	outstanding time.Time
	// probes counts those in a row that met that call, from first to last.
	probes      int
	first, last time.Time
	// timeout is how long the first of them waited.
	timeout time.Duration
}

const (
	// minSilentProbes is how many probes in a row must have had no answer, over
	// minSilentTimeouts times as long as the first of them waited: an abort costs what was
	// not written yet, and a server that fails over may take most of a minute.
	minSilentProbes   = 3
	minSilentTimeouts = 10
	// maxPause is the longest time between two probes of which nothing is assumed to have
	// happened in between.
	maxPause = 15 * time.Minute
	// maxSilences bounds what is kept; a node has fewer FUSE volumes.
	maxSilences = 1024
)

// observed is one observation of a superblock that did not answer.
type observed struct {
	mount  uint64
	answer facts.Answer
	drains bool
	now    time.Time
}

// next returns the silence after an observation. A daemon that answers reads, or other
// requests, is not silent, nor is one of which no request is known that it owes all
// the time.
func (s silence) next(o observed) silence {
	call := o.answer.Outstanding
	if o.drains || o.answer.Writing || call.IsZero() {
		return silence{}
	}
	if s.probes == 0 || s.mount != o.mount || !s.outstanding.Equal(call) || o.now.Sub(s.last) > maxPause {
		s = silence{mount: o.mount, outstanding: call, first: o.now, timeout: o.answer.Elapsed}
	}
	s.probes++
	s.last = o.now
	return s
}

// long reports whether a daemon hangs, and is not merely slow. A probe that cannot be
// ended counts each time it is met, so the time counts as well.
func (s silence) long() bool {
	return s.probes >= minSilentProbes && s.last.Sub(s.first) >= minSilentTimeouts*s.timeout
}

// oldest returns the lowest unique id of the volume's mounts of a superblock.
func oldest(c healer.Case, dev facts.Dev) (id uint64) {
	for _, p := range c.MountPoints {
		for _, m := range p.Stack {
			if m.Dev == dev && (id == 0 || m.ID < id) {
				id = m.ID
			}
		}
	}
	return id
}
