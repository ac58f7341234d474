package mounts

import (
	"fmt"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const adviceOnBare = "copy what the container wrote there out of it (kubectl cp), then delete the pod: it lies on the node's disk, and goes with the pod"

const adviceOldDevice = "delete the pod at once: what it writes may go to another volume's disk"

// judgeStarted says what containers have instead of the volume because of the instant
// at which they started. It stays as it is: a directory that is in use holds files,
// and whether a container wants its mount read-only no mount table tells.
func judgeStarted(c healer.Case) (found []healer.Condition) {
	for _, s := range started(c.OnBare) {
		found = append(found, healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnBareDirectory, MountPoint: s.mountPoint,
			Message: all(s.who) + " started while nothing was mounted at the path, with the directory of the node's disk beneath: what it writes does not get into the volume",
			Advice:  adviceOnBare,
		})
	}
	for _, s := range started(c.OnPlaceholder) {
		found = append(found, healer.Condition{
			Status: healer.Degraded, Reason: healer.ContainerKeptPlaceholder, MountPoint: s.mountPoint,
			Message: all(s.who) + " started in the middle of a step, and keeps the options that the mount had then (" + s.attr.String() + ")",
			Advice:  adviceContainer,
		})
	}
	for _, s := range c.OnOldDevice {
		found = append(found, healer.Condition{
			Status: healer.Inaccessible, Reason: healer.ContainerOnOldDevice, MountPoint: s.MountPoint,
			Message: fmt.Sprintf("%s started when the volume was device %s, which may be another disk by now: the volume is %s", s, s.Was, s.Now),
			Advice:  adviceOldDevice,
		})
	}
	return found
}

// startedAt are containers that have the same instead of the volume.
type startedAt struct {
	mountPoint string
	attr       host.Attr
	who        []string
}

func started(list []healer.StartedWith) (groups []*startedAt) {
next:
	for _, s := range list {
		for _, g := range groups {
			if g.mountPoint == s.MountPoint && g.attr == s.Mount.Attr {
				g.who = append(g.who, s.String())
				continue next
			}
		}
		groups = append(groups, &startedAt{s.MountPoint, s.Mount.Attr, []string{s.String()}})
	}
	return groups
}
