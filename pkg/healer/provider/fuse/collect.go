package fuse

import (
	"context"
	"errors"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// evidence has what was found out about each connection with which something is wrong, by the
// device of its superblock.
type evidence map[facts.Dev]connection

// connection is a FUSE connection that does not answer, has no daemon, or whose daemon cannot
// ask its storage.
type connection struct {
	daemons facts.FUSEDaemons
	// before and after are the requests that waited, at an interval of at least
	// drainTime; -1 for unknown.
	before, after int
	// silent is how long and in how many probes it has not answered.
	silent silence
	// shared says why the connection must not be aborted; empty: it may, or that was not asked.
	shared string
	// written is when the PersistentVolume or its Secret was last changed; zero for unknown.
	written time.Time
}

// drainTime is how long a daemon has to answer one of the requests that wait.
const drainTime = 100 * time.Millisecond

// drains reports whether the daemon answers requests.
func (c connection) drains() bool { return c.after >= 0 && c.before > c.after }

// Collect implements healer.Collector.
func (p *Provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	found := evidence{}
	staged, _ := c.Staged()
	for _, mp := range connections(c) {
		dev := mp.Dev()
		sb := c.Superblocks[dev]
		if !sb.Answer.TimedOut {
			p.silences.Remove(dev)
		}
		// The daemon of a superblock in whose place the driver has staged another one is not needed.
		outlived := len(staged.Stack) > 0 && staged.Dev() != dev
		var err error
		switch {
		case sb.Answer.TimedOut:
			found[dev], err = p.askHung(ctx, c, mp)
		case facts.Disconnected(sb.Answer.Errno) && !outlived, c.LookupFailed(sb.Lookup):
			got := connection{before: -1, after: -1}
			got.daemons, err = p.host.FUSEDaemons(ctx, dev)
			if p.inputs != nil && c.LookupFailed(sb.Lookup) {
				in, _ := p.inputs.Inputs(ctx, c) // what cannot be read says nothing
				got.written = in.Written
			}
			found[dev] = got
		}
		if err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, nil //nolint:nilnil // nothing is wrong; documented by healer.Collector
	}
	return found, nil
}

func (p *Provider) askHung(ctx context.Context, c healer.Case, mp healer.MountPoint) (got connection, err error) {
	dev := mp.Dev()
	later := time.NewTimer(drainTime)
	defer later.Stop()
	got.before = p.host.FUSEWaiting(ctx, dev)
	if got.daemons, err = p.host.FUSEDaemons(ctx, dev); err != nil {
		return got, err
	}
	select {
	case <-later.C:
		got.after = p.host.FUSEWaiting(ctx, dev)
	case <-ctx.Done(): // the process that was found still counts
		got.after = -1
	}
	if !p.abort {
		return got, nil
	}
	kept, _ := p.silences.Get(dev)
	before, _ := kept.(silence)
	got.silent = before.next(c.OldestMount(dev), c.Superblocks[dev].Answer, got.drains(), time.Now())
	p.silences.Add(dev, got.silent)
	if !got.silent.long() {
		return got, nil
	}
	switch err := p.host.MayAbortFUSE(ctx, planAbort(c, mp)); {
	case errors.Is(err, healer.ErrRefused):
		got.shared = err.Error()
	case err != nil:
		got.shared = "it cannot be told whether only this volume has the connection: " + err.Error()
	}
	return got, nil
}
