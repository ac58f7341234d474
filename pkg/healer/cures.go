package healer

import (
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Cure says what ends a condition where no step does: a new stage of the volume, or a new pod
// in the place of this one (its UID). With neither, nothing here knows.
type Cure struct {
	Reason   Reason
	NewStage bool
	NewPod   string
}

// Cures returns what ends each condition. Pods may be evicted only where that ends all of them.
func (d Diagnosis) Cures() (all []Cure) {
	add := func(next Cure) {
		if !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	for _, c := range d.Conditions {
		switch c.Reason {
		case ContainerUnverified: // which names the pod of one container only
		case StaleInContainers:
			add(Cure{Reason: c.Reason, NewPod: d.staleIn(c)})
		default:
			add(Cure{Reason: c.Reason, NewStage: d.Case.newStageEnds(c)})
		}
	}
	for _, u := range d.Case.Unverified {
		pod := u.PodUID
		if u.Why == facts.WhyNoAnswer { // its processes may never end
			pod = ""
		}
		add(Cure{Reason: ContainerUnverified, NewPod: pod})
	}
	for range d.Case.UnverifiedStart { // these may have written to the bare directory
		add(Cure{Reason: ContainerUnverified})
	}
	return all
}

// staleIn returns the pod whose container has a dead instance; empty where a step ends that,
// or where a process of the container may wait for that instance and never end.
func (d Diagnosis) staleIn(cond Condition) string {
	p, _ := d.Case.MountPoint(cond.MountPoint)
	healed := slices.ContainsFunc(d.Offers(), func(s Step) bool {
		return s.MountPoint.Path == cond.MountPoint && slices.Contains(s.Heals, cond.Reason)
	})
	if healed || p.InContainer == nil || p.InContainer.Probe.TimedOut {
		return ""
	}
	return p.PodUID
}

// newStageEnds reports whether what is wrong is the filesystem instance, and not the storage
// or one mount: a volume that is staged anew works again. What an overlay writes to is no
// volume's, and its device is not looked at. Where a volume is a directory of a filesystem that
// others have, too (a driver's own disk, the node's), that one stays mounted without the volume.
func (c Case) newStageEnds(cond Condition) bool {
	sb, known := c.Superblocks[cond.Superblock]
	if cond.Superblock.Zero() || !known || sb.FSType == "overlay" || !c.ShowsAll(cond.Superblock) {
		return false
	}
	switch cond.Reason {
	case FilesystemShutdown, ReadOnlyFilesystem, FilesystemErrors:
		return true
	case IOError: // an xfs that shut itself down answers EIO
		return sb.FSType == "xfs" && sb.Answer.Errno == syscall.EIO
	}
	return false
}
