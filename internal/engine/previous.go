package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// previousSuperblocks returns the superblocks that containers may still have of the
// volume, although its mount points have others: those of dead mounts above a healthy
// one, and those of the record of this boot.
func previousSuperblocks(c healer.Case) []facts.Dev {
	var all []facts.Dev
	working := map[facts.Dev]bool{}
	for _, p := range c.MountPoints {
		if top, mounted := p.Top(); mounted && p.Proven {
			if c.Superblock(p).Works() {
				working[top.Dev] = true
			} else {
				all = append(all, top.Dev)
			}
			for _, m := range p.Stack[1:] {
				all = append(all, m.Dev)
			}
		}
	}
	if c.RecordOfThisBoot() {
		for _, p := range c.Record.MountPoints {
			all = append(all, p.Dev)
		}
	}
	for _, f := range c.PreviousOfBoot() {
		all = append(all, f.Dev)
	}
	slices.SortFunc(all, func(a, b facts.Dev) int { return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor)) })
	return slices.DeleteFunc(slices.Compact(all), func(d facts.Dev) bool { return d.Zero() || working[d] })
}

// lastReplaced returns when a superblock of the volume was last replaced, in time since the boot; zero
// if none was. A container that was there then may still have the previous one.
func lastReplaced(c healer.Case) (replaced time.Duration) {
	for _, f := range c.PreviousOfBoot() {
		replaced = max(replaced, f.Since)
	}
	if c.RecordOfThisBoot() && podStayed(c) && slices.ContainsFunc(c.Record.MountPoints, func(p healer.MountPointRecord) bool { return gone(c, p.Dev) }) {
		replaced = node.SinceBoot() // at some time until now: the record is written after this
	}
	return replaced
}

// podStayed reports whether a pod that had the volume when the record was written still has it.
// When the last of those pods goes, kubelet unstages the volume, and what is staged for the next
// pod is another superblock.
func podStayed(c healer.Case) bool {
	return slices.ContainsFunc(c.Record.MountPoints, func(p healer.MountPointRecord) bool {
		_, stays := c.MountPoint(p.Path)
		return stays && p.Role == healer.RoleTarget
	})
}

// gone reports whether the host has a recorded superblock nowhere any more, and it is
// not known as a previous one.
func gone(c healer.Case, dev facts.Dev) bool {
	_, here := onHost(c, dev)
	return !here && !dev.Zero() && !c.Replaced(dev)
}

// onHost returns the proven mount point of the volume at which the host has a
// superblock.
func onHost(c healer.Case, dev facts.Dev) (path string, found bool) {
	for _, p := range c.MountPoints {
		if p.Proven && hasDev(p.Stack, dev) {
			return p.Path, true
		}
	}
	return "", false
}

func hasDev(stack []facts.Mount, dev facts.Dev) bool {
	return slices.ContainsFunc(stack, func(m facts.Mount) bool { return m.Dev == dev })
}

// recordedMount returns what the record says of a container's mount: of that mount itself (same),
// or where m may be the clone that an interrupted replacement left (left), of the mount that was
// to be replaced at its path: its attributes are those that the clone is to get.
func recordedMount(c healer.Case, m facts.ContainerMount) (healer.PreviousMount, bool) {
	for _, f := range c.PreviousOfBoot() {
		for _, seen := range f.Mounts {
			there := seen.Namespace == m.Namespace && seen.Path == m.Mount.Path
			same := seen.ID == m.Mount.ID && f.Dev == m.Mount.Dev && (seen.ID != 0 || there)
			another := f.Dev != m.Mount.Dev || facts.IsNFS(m.Mount.FSType)
			left := another && (seen.ID < m.Mount.ID || m.Mount.ID == 0) && there
			if same || left {
				return seen, true
			}
		}
	}
	return healer.PreviousMount{}, false
}
