package fuse

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	adviceGone    = "see in the log of the daemon's pod or unit, and in the kernel log, why it ended; only the driver can mount the volume again: delete the pod"
	adviceStopped = "kill -CONT %d lets it go on; see who stopped it"
	adviceStorage = "see in the daemon's log why its storage does not answer: the server, the way to it, the key, or that what the volume shows is gone there"
	adviceOld     = "the PersistentVolume or its Secret was changed at %s, after process %d was started, which goes by the old one; a daemon that the driver starts after that one was ended goes by the new one, and what was not written yet is lost then"
	adviceStarts  = "see whether the pod's containers have started, and why not; end no process for it before they have"
	adviceHung    = "see in its log and in /proc/<pid>/stack what the daemon waits for; if it is ended, what was not written yet is lost"
)

// judgement is about one connection.
type judgement struct {
	c          healer.Case
	mountPoint healer.MountPoint
	dev        facts.Dev
	sb         healer.Superblock
	connection connection
}

// condition returns what is wrong with the daemon, if that says more than what is wrong
// with the mount.
func (j judgement) condition() (healer.Condition, bool) {
	daemons := j.connection.daemons
	switch l := j.sb.Lookup; {
	case j.c.LookupFailed(l):
		answer := facts.ErrnoName(l.Errno)
		if l.TimedOut {
			answer = fmt.Sprintf("no answer within %s", l.Within)
		}
		cond := j.one(healer.BackendUnreachable, j.adviceStorage(), "%s for a name that cannot exist: %s answers for its root from memory%s", answer, j.served(), j.server())
		if l.Earlier {
			// It may be over: a volume that is in use all the time cannot be asked again, and
			// is not to be kept from its other mount points for that.
			cond.Status = healer.Degraded
			cond.Message += "; that was earlier, and it cannot be asked again while requests wait"
		}
		return cond, true
	case !j.sb.Answer.TimedOut && len(daemons.Processes) == 0 && !daemons.Untold && !daemons.Cut:
		return j.one(healer.DaemonGone, adviceGone, "%s has %s open any more", noProcess(daemons), j.name()), true
	case !j.sb.Answer.TimedOut:
		return healer.Condition{}, false
	case stopped(daemons.Processes):
		first := daemons.Processes[0]
		how := "stopped (SIGSTOP)"
		if first.State == 't' {
			how = "stopped by a debugger"
		}
		return j.one(healer.DaemonStopped, fmt.Sprintf(adviceStopped, first.PID), "%s is %s; %s", j.served(), how, j.waiting()), true
	case j.sb.Answer.Outstanding.IsZero() && !j.answeredBefore(): // nobody has read the request
		return j.one(healer.DaemonHung, adviceStarts, "%s was not seen to answer since it was mounted; its daemon may not have begun, as a sidecar's is not before the pod's containers (gcsfuse)", j.served()), true
	default:
		return j.one(healer.DaemonHung, adviceHung, "%s does not answer; %s%s", j.served(), j.waiting(), j.server()), true
	}
}

// answeredBefore reports whether the record has the superblock at one of its mount points: the number alone may
// have been that of another pod's mount.
func (j judgement) answeredBefore() bool {
	return j.c.RecordOfThisBoot() && slices.ContainsFunc(j.c.MountPoints, func(p healer.MountPoint) bool {
		return p.Dev() == j.dev && p.Want != nil && p.Want.Dev == j.dev
	})
}

// adviceStorage names also what was changed since the daemon was started. Nobody is to end process 1, which systemd's
// FDSTORE has keep a connection.
func (j judgement) adviceStorage() string {
	at := j.connection.written
	for _, d := range j.connection.daemons.Processes {
		if d.PID != 1 && at.After(j.c.BootTime.Add(d.Started)) {
			return adviceStorage + "; " + fmt.Sprintf(adviceOld, at.UTC().Format(time.RFC3339), d.PID)
		}
	}
	return adviceStorage
}

func (j judgement) one(r healer.Reason, advice, format string, args ...any) healer.Condition {
	return healer.Condition{
		Status: healer.Inaccessible, Reason: r, MountPoint: j.mountPoint.Path, Superblock: j.dev,
		Message: fmt.Sprintf(format, args...), Advice: advice,
	}
}

// stopped reports whether no process can serve the connection.
func stopped(daemons []facts.FUSEDaemon) bool {
	return len(daemons) > 0 && !slices.ContainsFunc(daemons, func(d facts.FUSEDaemon) bool { return !d.Stopped() })
}

func (j judgement) name() string {
	return fmt.Sprintf("FUSE connection %d", j.dev.FUSEConnection())
}

// served names the daemon: the subject of a sentence.
func (j judgement) served() string {
	daemons := j.connection.daemons
	switch {
	case daemons.Untold:
		return "the kernel does not tell which daemon serves " + j.name() + ", and it"
	case len(daemons.Processes) == 0:
		return noProcess(daemons) + " has " + j.name() + " open, and it"
	}
	const limit = 2
	names := make([]string, 0, limit)
	for _, d := range daemons.Processes[:min(len(daemons.Processes), limit)] {
		names = append(names, j.processName(d))
	}
	text := "the daemon of " + j.name() + ", " + strings.Join(names, " and ")
	if more := len(daemons.Processes) - limit; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ","
}

// noProcess is the subject of a sentence about no process.
func noProcess(d facts.FUSEDaemons) string {
	if d.Unseen > 0 || d.Cut {
		return "no process that could be examined"
	}
	return "no process"
}

func (j judgement) processName(d facts.FUSEDaemon) string {
	text := fmt.Sprintf("process %d %s (state %c, since %s", d.PID, printable.Name(d.Command), d.State, j.c.BootTime.Add(d.Started).UTC().Format(time.RFC3339))
	switch w := healer.WorkloadName(d.PodUID, d.ContainerID); {
	case w != "":
		text += ", " + w
	case d.Dir != "":
		text += ", cgroup " + printable.Name(d.Dir)
	}
	return text + ")"
}

// waiting returns the requests that the daemon owes.
func (j judgement) waiting() string {
	before, after := j.connection.before, j.connection.after
	switch {
	case before <= 0 || after < 0:
		return "it is not known how many requests wait"
	case before > after:
		return fmt.Sprintf("%d requests waited, and after %s %d", before, drainTime, after)
	default:
		return fmt.Sprintf("%d requests wait, and none was answered within %s", after, drainTime)
	}
}

// server returns which servers of the daemon are silent, or else those that it is connected to.
func (j judgement) server() (text string) {
	var connected []string
	for _, p := range j.connection.daemons.Peers {
		switch {
		case p.Retransmits > 1: // a single packet may have been lost
			text += fmt.Sprintf("; its server %s has not answered (%d retransmits)", p.Address, p.Retransmits)
		case p.Connected:
			connected = append(connected, p.Address)
		}
	}
	if text == "" && len(connected) > 0 {
		text = "; it is connected to " + strings.Join(connected, ", ")
	}
	return text
}
