package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// InspectQuery asks about paths and one superblock.
type InspectQuery struct {
	Paths []PathQuery
	// Probe is the mount whose superblock is to be probed; nil asks about paths
	// only.
	Probe *facts.Mount
	// Routine is true where nothing calls for an answer at once: others may be asked with
	// it.
	Routine bool
}

// Inspection is the answer to an InspectQuery.
type Inspection struct {
	Paths map[string]facts.PathInfo
	// Changed is true when the mount to probe was no longer there: the mount
	// table has to be read again.
	Changed bool
	Answer  facts.Answer
	// Kind is the type of the probed root.
	Kind facts.PathKind
	// ProbeFacts are of the superblock: it is ReadOnly, and not only the mount.
	facts.ProbeFacts
}

// Inspect answers a query in one worker round trip when the volume is healthy.
// That a superblock does not answer in time is an answer; an error means that
// the question could not be asked.
func (n *Node) Inspect(ctx context.Context, q InspectQuery) (Inspection, error) {
	if q.Probe == nil {
		return n.inspectPaths(ctx, q.Paths, q.Routine)
	}
	s, called := storageOf(*q.Probe), time.Now()
	call, first := n.probes.join(s, *q.Probe)
	for !first {
		if in, shared, err := n.share(ctx, q, call, called); shared {
			return in, err
		}
		call, first = n.probes.join(s, *q.Probe)
	}
	in, err := n.probeFirst(ctx, q, call)
	if in.Answer.TimedOut {
		in.Answer.Outstanding = call.found.Answer.Outstanding
		return n.withoutAnswer(ctx, q, in)
	}
	return in, err
}

// probeFirst probes for all callers that come meanwhile. It calls finish also when the probe panics: else
// every later call would wait for this one for ever.
func (n *Node) probeFirst(ctx context.Context, q InspectQuery, call *storageCall) (in Inspection, err error) {
	defer func() { n.probes.finish(storageOf(*q.Probe), call, in, err) }()
	err = n.atServer(ctx, *q.Probe, func() (err error) {
		in, err = n.probe(ctx, q)
		return err
	})
	if timedOut(ctx, err) {
		in.Answer = n.noAnswer(err)
	}
	return in, err
}

// probe has a worker probe the superblock and examine the paths. An errno counts
// when a second probe gives one too.
func (n *Node) probe(ctx context.Context, q InspectQuery) (Inspection, error) {
	whole := n.probeOf(*q.Probe)
	query := ops.InspectQuery{Paths: q.Paths, Probe: whole}
	var a ops.InspectAnswer
	for range 2 {
		var err error
		a, err = n.ask(ctx, storageOf(*q.Probe), q.Routine, query)
		if whole.Thawed && n.waitsForThaw(ctx, *q.Probe, err) {
			whole.Thawed = false // and now without that
			a, err = n.ask(ctx, storageOf(*q.Probe), q.Routine, query)
		}
		switch {
		case err != nil:
			return Inspection{}, err
		case a.Probe.Changed:
			return Inspection{Changed: true, Answer: facts.Answer{Asked: true}}, nil
		}
		if a.Probe.Errno == 0 {
			break
		}
	}
	in := Inspection{Answer: a.Probe.Answer, Kind: a.Probe.Kind, ProbeFacts: a.Probe.ProbeFacts, Paths: make(map[string]facts.PathInfo, len(q.Paths))}
	n.addPaths(in.Paths, q.Paths, a)
	in.Answer.Late = n.probes.late(*q.Probe, a.Probe.Elapsed > n.cfg.SlowAnswer)
	// The kernel refuses what a read-only mount forbids with the same errno.
	in.ReadOnly = a.Probe.ReadOnly && !q.Probe.Attr.Has(facts.AttrReadOnly)
	n.addFrozen(*q.Probe, &in.Answer)
	if in.Changed = !n.IsTop(*q.Probe); in.Changed {
		return in, nil // another filesystem may have been probed
	}
	if !in.Rdev.Zero() {
		n.rdevs.add(rdevKeyOf(*q.Probe), in.Rdev)
	}
	return in, nil
}

// share waits for a probe that another call began. All waiters share its timeout;
// another answer is shared by callers that asked the same before it began, unless
// the mount changed. shared is false for a caller that has to probe itself.
func (n *Node) share(ctx context.Context, q InspectQuery, call *storageCall, called time.Time) (_ Inspection, shared bool, _ error) {
	wait, cancel := context.WithTimeout(ctx, n.longestProbe())
	defer cancel()
	in := Inspection{Answer: n.noAnswer(nil)}
	select {
	case <-call.done:
		in = call.found
	case <-wait.Done():
		if ctx.Err() != nil { // the caller's time is over, which says nothing of the storage
			return Inspection{}, true, ctx.Err()
		}
	}
	switch {
	case in.Answer.TimedOut:
		in, err := n.withoutAnswer(ctx, q, in)
		return in, true, err
	case !in.Answer.Asked || in.Changed || !sameView(call.mount, *q.Probe) || called.After(call.began):
		return Inspection{}, false, nil
	}
	paths, err := n.inspectPaths(ctx, q.Paths, q.Routine)
	in.Paths, in.Changed = paths.Paths, !n.IsTop(*q.Probe)
	return in, true, err
}

// longestProbe is how long a call may take that answers: for two probes and for their
// workers, each after it was asked together with others.
func (n *Node) longestProbe() time.Duration {
	return 4*n.cfg.ProbeTimeout + 2*(batchGap+batchTimeLimit)
}

// withoutAnswer completes the inspection of a superblock that does not answer. The
// paths are examined without touching the volume: kubelet's files lie above it and
// can be read even then.
func (n *Node) withoutAnswer(ctx context.Context, q InspectQuery, in Inspection) (Inspection, error) {
	if m := *q.Probe; m.MayBeNode() || m.FSType == "btrfs" { // a number without a device may be given out again
		in.Rdev, _ = n.rdevs.get(rdevKeyOf(m)) // sysfs may say why the device does not answer
	}
	var above []PathQuery
	var inVolume []string
	for _, p := range q.Paths {
		if strings.HasPrefix(p.Path, q.Probe.Path+"/") {
			inVolume = append(inVolume, p.Path) // the walk to it leads through the volume
			continue
		}
		p.ParentOnly = true
		above = append(above, p)
	}
	paths, err := n.inspectPaths(ctx, above, false)
	if err != nil && ctx.Err() == nil {
		paths, err = n.lastKnown(above, err)
	}
	if err != nil {
		return Inspection{}, err
	}
	for _, p := range inVolume {
		paths.Paths[p] = facts.PathInfo{Inspected: true}
	}
	in.Paths = paths.Paths
	return in, nil
}

// noAnswer is the answer when a worker got none.
func (n *Node) noAnswer(err error) facts.Answer {
	return facts.Answer{Asked: true, TimedOut: true, Stuck: errors.Is(err, worker.ErrStuck), Waits: waits(err), Elapsed: n.cfg.ProbeTimeout}
}

// timedOut reports whether a worker got no answer, as far as that tells about the
// storage: a worker that was ended early, because its caller's time was over, does not.
func timedOut(ctx context.Context, err error) bool {
	return errors.Is(err, worker.ErrStuck) || errors.Is(err, worker.ErrTimeout) && over(ctx) == nil
}

// over returns why the time of a call is over, nil where it is not. A worker's deadline, which is the same,
// may end its call before ctx is told to end.
func over(ctx context.Context) error {
	if end, has := ctx.Deadline(); has && ctx.Err() == nil && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// inTime also names the end of ctx, for a call that no worker answered because of it.
func inTime(ctx context.Context, err error) error {
	if why := over(ctx); why != nil && (errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck)) {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

// waits returns the functions of the kernel in which a worker without an answer waited.
func waits(err error) []string {
	var stuck interface{ Waits() []string }
	if errors.As(err, &stuck) {
		return stuck.Waits()
	}
	return nil
}

// probeOf returns the query for a probe of the mount's superblock. With a block
// device below it, one block of that is read too: a filesystem answers from memory.
func (n *Node) probeOf(m facts.Mount) *ops.ProbeQuery {
	q := ops.ProbeQuery{
		Path:   m.Path,
		Around: n.fewBeside(m),
		Root:   !facts.IsType(m.FSType, facts.Disk|facts.Memory|facts.DeviceNodes), // else its root is in memory
		Thawed: facts.IsType(m.FSType, facts.Disk) && n.probes.outstanding(thawOf(m)) == nil,
	}
	switch {
	case facts.IsType(m.FSType, facts.Ceph): // the files of a snapshot show a number of their own
	case m.FSType != "btrfs":
		q.Superblock = m.Dev
	case strings.HasPrefix(m.Source, "/dev/") && path.Clean(m.Source) == m.Source:
		q.Source = m.Source // which tells its block device, where the number is anonymous
	}
	if m.OnDevice() { // btrfs tells by its source
		if name := n.name(m.Dev); name != "" {
			q.Device = "/dev/" + name
		}
	}
	return &q
}

// maxBeside bounds the mounts that the kernel has to examine to clone the directory
// above one of them: some 30 ns each, during which no other process can mount.
const maxBeside = 1000

// fewBeside reports whether a clone may be made of the directory above a mount point:
// one that has no other mount in it, as all of kubelet's.
func (n *Node) fewBeside(m facts.Mount) bool {
	if k := n.kubelet.Layout(m.Path).Kind; k == layout.Other || k == layout.Subpath {
		return false
	}
	table, err := n.Topology()
	return err == nil && table.Beside(m) <= maxBeside
}
