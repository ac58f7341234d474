package containers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// What a person should do.
const (
	adviceRestart   = "delete the pod, so that its containers start with the volume as it is now"
	adviceAgain     = "call again; if it stays so, see which pod has so many processes"
	adviceOnBare    = "copy what the container wrote there out of it (kubectl cp), then delete the pod: it lies on the node's disk, and goes with the pod"
	adviceOldDevice = "delete the pod at once: what it writes may go to another volume's disk"
)

// stale says what is wrong with the mount that a container has.
func stale(p healer.MountPoint) healer.Condition {
	in := p.InContainer
	message := ""
	switch {
	case in.Mount.Guarded() && in.Probe == (host.ContainerProbe{}):
		message = "an interrupted replacement left it unfinished"
	case in.Probe.Unable != "" && !in.Probe.Silent:
		message = "it has a filesystem instance that is no longer the volume's, and cannot be probed: " + in.Probe.Unable
	case in.Probe.Silent:
		message = "it has a filesystem instance that is no longer the volume's and does not answer"
	case in.Probe.Errno != 0:
		message = "it still has the filesystem instance that ended: " + host.Answer{Asked: true, Op: "statx", Errno: in.Probe.Errno}.String()
	default:
		message = "it still has a filesystem instance that shut itself down"
	}
	return healer.Condition{
		Status: healer.Inaccessible, Reason: healer.StaleInContainers, MountPoint: p.Path,
		Message: message, Advice: adviceRestart, Acute: true,
	}
}

// unverified returns one condition for each mount point and cause for which
// containers could not be looked into.
func unverified(c healer.Case, containers []host.Unverified, when string) (found []healer.Condition) {
	type group struct {
		mountPoint, cause string
		anyPod            bool // the cause is of no one pod: a scan was cut short
	}
	who := map[group][]string{}
	var order []group
	for _, u := range containers {
		g := group{targetOf(c, u.PodUID), u.Why, u.PodUID == ""}
		if who[g] == nil {
			order = append(order, g)
		}
		who[g] = append(who[g], u.String())
	}
	for _, g := range order {
		advice := adviceRestart
		if g.anyPod {
			advice = adviceAgain
		}
		found = append(found, healer.Condition{
			Status: healer.Degraded, Reason: healer.ContainerUnverified, MountPoint: g.mountPoint,
			Message: subject(who[g]) + " " + when + ", and cannot be looked into: " + g.cause,
			Advice:  advice,
		})
	}
	return found
}

// targetOf returns the path of a pod's target, else that of the first mount point.
func targetOf(c healer.Case, podUID string) string {
	at := slices.IndexFunc(c.MountPoints, func(p healer.MountPoint) bool {
		return p.Role == healer.RoleTarget && p.PodUID == podUID && podUID != ""
	})
	return c.MountPoints[max(at, 0)].Path
}

// onBareDirectory reports containers that started while nothing was mounted. Nothing
// heals that: a directory in use holds files, which a mount would hide.
func onBareDirectory(c healer.Case) (found []healer.Condition) {
	for _, g := range grouped(c.OnBare) {
		found = append(found, healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnBareDirectory, MountPoint: g.mountPoint,
			Message: subject(g.who) + " started while nothing was mounted at the path, with the directory of the node's disk beneath: what it writes does not get into the volume",
			Advice:  adviceOnBare,
		})
	}
	return found
}

// onPlaceholder reports containers that started in the middle of a step. Nothing
// heals that: no mount table tells whether a container wants its mount read-only.
func onPlaceholder(c healer.Case) (found []healer.Condition) {
	for _, g := range grouped(c.OnPlaceholder) {
		found = append(found, healer.Condition{
			Status: healer.Degraded, Reason: healer.ContainerKeptPlaceholder, MountPoint: g.mountPoint,
			Message: subject(g.who) + " started in the middle of a step, and keeps the options that the mount had then (" + g.attr.String() + ")",
			Advice:  adviceRestart,
		})
	}
	return found
}

func onOldDevice(c healer.Case) (found []healer.Condition) {
	for _, s := range c.OnOldDevice {
		found = append(found, healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnOldDevice, MountPoint: s.MountPoint,
			Message: fmt.Sprintf("%s started when the volume was device %s, which may be another disk by now: the volume is %s", s, s.Was, s.Now),
			Advice:  adviceOldDevice,
		})
	}
	return found
}

// startGroup holds the containers of one mount point that have the same instead of
// the volume.
type startGroup struct {
	mountPoint string
	attr       host.Attr
	who        []string
}

func grouped(list []healer.StartedWith) (groups []*startGroup) {
	for _, s := range list {
		at := slices.IndexFunc(groups, func(g *startGroup) bool { return g.mountPoint == s.MountPoint && g.attr == s.Mount.Attr })
		if at < 0 {
			at, groups = len(groups), append(groups, &startGroup{mountPoint: s.MountPoint, attr: s.Mount.Attr})
		}
		groups[at].who = append(groups[at].who, s.String())
	}
	return groups
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
