package containers

import (
	"fmt"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// What a person should do.
const (
	adviceRestart   = "delete the pod, so that its containers start with the volume as it is now"
	adviceMayBeBare = "see in the container whether it has the volume; if not, copy what it wrote out of it (kubectl cp), as that goes with the pod; then delete the pod"
	adviceAgain     = "call again; if it stays so, see which pod has so many processes"
	adviceOnBare    = "copy what the container wrote there out of it (kubectl cp), then delete the pod: it lies on the node's disk, and goes with the pod"
	adviceOldDevice = "delete the pod at once: what it writes may go to another volume's disk"
)

// stale says what is wrong with the mount that a container has.
func stale(p healer.MountPoint) healer.Condition {
	in := p.InContainer
	message := ""
	switch {
	case in.Mount.Guarded() && in.Probe == (facts.ContainerProbe{}):
		message = "an interrupted replacement left it unfinished"
	case in.Probe.Err != "" && !in.Probe.TimedOut:
		message = "it has a filesystem instance that is no longer the volume's, and cannot be probed: " + in.Probe.Err
	case in.Probe.TimedOut:
		message = "it has a filesystem instance that is no longer the volume's and does not answer"
	case facts.MayWork(in.Mount.FSType, in.Probe.Errno):
		message = "it has a filesystem instance that is no longer the volume's and answers " + facts.ErrnoName(in.Probe.Errno)
	case in.Probe.Errno != 0:
		message = "it still has the filesystem instance that ended: " + facts.Answer{Asked: true, Op: "statx", Errno: in.Probe.Errno}.String()
	default:
		message = "it still has a filesystem instance that shut itself down"
	}
	return healer.Condition{
		Status: healer.Inaccessible, Reason: healer.StaleInContainers, MountPoint: p.Path,
		Message: message, Advice: adviceRestart, Acute: true,
	}
}

// started returns what containers have instead of the volume, or may have, because of
// when they started. Nothing heals that: a directory in use holds files, which a mount
// would hide, and no mount table tells whether a container wants its mount read-only. A condition
// that several containers have at one mount point is said once, and begins with their names.
func started(c healer.Case) (found []healer.Condition) {
	who := map[healer.Condition][]string{}
	add := func(container string, cond healer.Condition) {
		if who[cond] == nil {
			found = append(found, cond)
		}
		who[cond] = append(who[cond], container)
	}
	unverified := func(containers []facts.Unverified, when, advice string) {
		for _, u := range containers {
			cond := healer.Condition{
				Status: healer.Degraded, Reason: healer.ContainerUnverified, MountPoint: c.TargetOf(u.PodUID),
				Message: when + ", and cannot be inspected: " + why(u), Advice: advice,
			}
			if u.PodUID == "" { // a scan was cut short, so that no one pod is meant
				cond.Advice = adviceAgain
			}
			cond.SaveFirst = cond.Advice == adviceMayBeBare
			add(healer.ContainerName(u.PodUID, u.ContainerID), cond)
		}
	}
	unverified(c.Unverified, "there before the filesystem instance was replaced", adviceRestart)
	unverified(c.UnverifiedStart, "started while the volume may not have been mounted here", adviceMayBeBare)
	for _, s := range c.OnBare {
		add(s.String(), healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnBareDirectory, MountPoint: s.MountPoint,
			Message: "started while nothing was mounted at the path, with the directory of the node's disk beneath: what it writes does not get into the volume",
			Advice:  adviceOnBare,
		})
	}
	for _, s := range c.OnPlaceholder {
		add(s.String(), healer.Condition{
			Status: healer.Degraded, Reason: healer.ContainerKeptPlaceholder, MountPoint: s.MountPoint,
			Message: "started in the middle of a step, and keeps the options that the mount had then (" + s.Mount.Attr.String() + ")",
			Advice:  adviceRestart,
		})
	}
	for i, cond := range found {
		found[i].Message = subject(who[cond]) + " " + cond.Message
	}
	return found
}

// why returns why a container cannot be inspected.
func why(u facts.Unverified) string {
	switch u.Why {
	case facts.WhyNoAnswer:
		return "it does not answer"
	case facts.WhyUnreadable:
		return "its mounts could not be read: " + u.Detail
	case facts.WhyScanCut:
		return "not all processes on the node could be read in time"
	case facts.WhySandbox:
		return "it runs in a sandbox (" + u.Detail + ")"
	case facts.WhyForeign:
		return "its mount namespace belongs to another user namespace"
	case facts.WhyTooMany:
		return "it has more mounts of the volume than are inspected"
	case facts.WhyUnplaced:
		return "one of its processes lives, and the kernel does not tell in which mount namespace"
	default:
		return u.Detail
	}
}

// subject names the first containers and counts the rest, with the verb that follows.
func subject(who []string) string {
	const named = 3
	switch rest := len(who) - named; {
	case rest > 0:
		return fmt.Sprintf("%s and %d more were", strings.Join(who[:named], ", "), rest)
	case len(who) > 1:
		return strings.Join(who, ", ") + " were"
	}
	return who[0] + " was"
}
