package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
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
	// Answer is the answer of the probed superblock.
	Answer facts.Answer
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
	if timedOut(ctx, err) && !in.Answer.Asked { // its turn did not come
		in.Answer = n.noAnswer(err)
	}
	return in, err
}

// probe has a worker probe the superblock and examine the paths. An errno counts
// when a second probe gives one too.
func (n *Node) probe(ctx context.Context, q InspectQuery) (Inspection, error) {
	query, known := n.pathQueries(q.Paths)
	whole := n.probeOf(*q.Probe)
	query.Probe = whole
	var a ops.InspectAnswer
	for range 2 {
		var err error
		a, err = n.ask(ctx, storageOf(*q.Probe), q.Routine, query)
		if whole.Thawed && n.waitsForThaw(ctx, *q.Probe, err) {
			whole.Thawed = false // and now without that
			a, err = n.ask(ctx, storageOf(*q.Probe), q.Routine, query)
		}
		switch {
		case timedOut(ctx, err):
			answer := n.noAnswer(err)
			answer.Waits = waits(err)
			return Inspection{Answer: answer}, err
		case err != nil:
			return Inspection{}, err
		case a.Probe.Changed:
			return Inspection{Changed: true, Answer: facts.Answer{Asked: true}}, nil
		}
		if a.Probe.Errno == 0 {
			break
		}
	}
	in := n.inspection(*q.Probe, a.Probe)
	in.Paths = n.pathInfos(query.Paths, known, a)
	if in.Changed = !n.IsTop(*q.Probe); in.Changed {
		return in, nil // another filesystem may have been probed
	}
	if !in.Rdev.Zero() {
		n.rdevs.add(storageOf(*q.Probe), in.Rdev)
	}
	return in, nil
}

// inspection joins the answer of a probe with what the server knows.
func (n *Node) inspection(m facts.Mount, a ops.ProbeAnswer) Inspection {
	in := Inspection{Answer: a.Answer, Kind: a.Kind, ProbeFacts: a.ProbeFacts}
	in.Answer.Late = n.probes.late(m, a.Elapsed > n.cfg.SlowAnswer)
	// The kernel refuses what a read-only mount forbids with the same errno.
	in.ReadOnly = a.ReadOnly && !m.Attr.Has(facts.AttrReadOnly)
	n.addFrozen(m, &in.Answer)
	return in
}

// share waits for a probe that another call began. All waiters share its timeout;
// another answer is shared by callers that asked the same before it began, unless
// the mount changed. shared is false for a caller that has to probe itself.
func (n *Node) share(ctx context.Context, q InspectQuery, call *storageCall, called time.Time) (_ Inspection, shared bool, _ error) {
	wait, cancel := context.WithTimeout(ctx, n.longestProbe())
	defer cancel()
	in := Inspection{Answer: facts.Answer{Asked: true, TimedOut: true, Elapsed: n.cfg.ProbeTimeout}}
	select {
	case <-call.done:
		in = call.found
	case <-wait.Done():
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
	return facts.Answer{Asked: true, TimedOut: true, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}
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

// waits returns the functions of the kernel in which a worker without an answer waited.
func waits(err error) []string {
	var stuck interface{ Waits() []string }
	if errors.As(err, &stuck) {
		return stuck.Waits()
	}
	return nil
}
