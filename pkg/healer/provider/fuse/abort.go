package fuse

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// StepAbortConnection is the name of the one step.
const StepAbortConnection = "abort-connection"

// abortConnection offers to abort a connection whose daemon hangs. The volume is then
// Disconnected, and what restarts a dead daemon comes next.
func (p *Provider) abortConnection(j judgement) healer.Step {
	s := healer.Step{
		Name: StepAbortConnection, MountPoint: j.mountPoint, Cost: healer.Reconnect,
		Heals: []healer.Reason{healer.DaemonHung, healer.NotResponding}, Source: j.dev,
		Note: "the connection is aborted, and what was not written yet is lost",
	}
	if s.Refused = whyNotYet(j); s.Refused != "" {
		return s
	}
	plan := planAbort(j.c, j.mountPoint)
	s.Run = func(ctx context.Context, revalidate func(context.Context) error) error {
		return p.host.AbortFUSE(ctx, plan, revalidate)
	}
	return s
}

// whyNotYet returns why the connection must not be aborted; empty if it may.
func whyNotYet(j judgement) string {
	s, d := j.connection.silent, j.connection.daemons
	switch {
	case j.sb.Answer.Writing:
		return "the daemon answers reads"
	case j.connection.drains():
		return "the daemon answers requests"
	case j.connection.before < 0 || j.connection.after < 0:
		return "it cannot be told whether the daemon answers requests: fusectl does not tell how many wait"
	case d.Untold || d.Cut || d.Unseen > 0 || len(d.Processes) == 0:
		return "it cannot be told whether the daemon is merely stopped"
	case slices.ContainsFunc(d.Processes, facts.FUSEDaemon.Stopped):
		return "a process of the daemon is stopped"
	case slices.ContainsFunc(d.Processes, func(p facts.FUSEDaemon) bool { return p.PID == 1 }):
		return "process 1 keeps the connection for a daemon that is started anew, and then goes on (FDSTORE of systemd)"
	case s.probes == 0:
		return "the daemon may only be slow: no probe still waits for its answer"
	case !s.long():
		return fmt.Sprintf("the daemon may only be slow: %d probes within %s had no answer, and it takes %d in a row over at least %s",
			s.probes, s.last.Sub(s.first).Round(time.Millisecond), minSilentProbes, (minSilentTimeouts * j.sb.Answer.Elapsed).Round(time.Millisecond))
	default:
		return j.connection.shared
	}
}

// planAbort returns what to abort, with all that is known to be the volume's: its mount
// points, now and in the record.
func planAbort(c healer.Case, mp healer.MountPoint) facts.AbortPlan {
	plan := facts.AbortPlan{Mount: mp.Stack[0], Pods: c.Pods()}
	for _, p := range c.MountPoints {
		if p.InContainer != nil || !p.Proven {
			continue
		}
		for _, m := range p.Stack {
			if !slices.Contains(plan.Paths, m.Path) {
				plan.Paths = append(plan.Paths, m.Path)
			}
		}
	}
	for _, p := range c.Dormant {
		plan.Paths = append(plan.Paths, p.Path)
	}
	return plan
}

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

// next returns the silence after an observation, at a time, of a superblock that did not answer. A daemon that answers reads, or other
// requests, is not silent, nor is one of which no request is known that it owes all
// the time.
func (s silence) next(mount uint64, a facts.Answer, drains bool, now time.Time) silence {
	call := a.Outstanding
	if drains || a.Writing || call.IsZero() {
		return silence{}
	}
	if s.probes == 0 || s.mount != mount || !s.outstanding.Equal(call) || now.Sub(s.last) > maxPause {
		s = silence{mount: mount, outstanding: call, first: now, timeout: a.Elapsed}
	}
	s.probes++
	s.last = now
	return s
}

// long reports whether a daemon hangs, and is not merely slow. A probe that cannot be
// ended counts each time it is met, so the time counts as well.
func (s silence) long() bool {
	return s.probes >= minSilentProbes && s.last.Sub(s.first) >= minSilentTimeouts*s.timeout
}
