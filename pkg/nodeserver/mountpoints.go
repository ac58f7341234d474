package nodeserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// compareMountPoints puts the mount points of the request first, targets before
// staging before containers.
func compareMountPoints(a, b healer.MountPoint) int {
	rank := func(p healer.MountPoint) int {
		at := slices.Index([]healer.Role{healer.RoleTarget, healer.RoleStaging, healer.RoleContainer, ""}, p.Role)
		if !p.Named {
			at += 4
		}
		return at
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Path, b.Path))
}

// working says of a healthy diagnosis which mount points were examined and how the
// storage answered.
func (w wording) working(d healer.Diagnosis, name func(path string) string) string {
	if len(d.Case.MountPoints) == 0 {
		return "nothing is wrong with the volume"
	}
	mountPoints := slices.DeleteFunc(slices.Clone(d.Case.MountPoints), func(p healer.MountPoint) bool {
		return len(p.Stack) == 0 && p.Role == healer.RoleStaging // a driver that stages nothing
	})
	if len(mountPoints) == 0 {
		return "nothing is mounted at " + name(d.Case.MountPoints[0].Path) + ", and no record shows that anything was"
	}
	slices.SortFunc(mountPoints, compareMountPoints)
	text := firstOf(mountPoints, func(p healer.MountPoint) string { return name(p.Path) + mounted(d.Case, p) })
	slowest, probed := slowestAnswer(d.Case)
	switch {
	case !probed:
		return text + " checked, storage not probed"
	case w.timeless:
		return text + " answered"
	}
	return text + " answered in " + rounded(slowest)
}

// mounted says what is mounted at a healthy mount point.
func mounted(c healer.Case, p healer.MountPoint) string {
	if p.Inspect.Kind == facts.KindBlock {
		name := p.Inspect.Rdev.String()
		if d := c.Superblocks[p.Inspect.Rdev].Device; d != nil && d.Name != "" {
			name = d.Name
		}
		return " (block device " + printable.Line(name, maxReasonBytes) + ")"
	}
	top, ok := p.Top()
	if !ok {
		return ""
	}
	access := "rw"
	if top.SuperReadOnly || top.Attr.Has(facts.AttrReadOnly) {
		access = "ro"
	}
	return " (" + printable.Line(top.FSType, maxReasonBytes) + ", " + access + ")"
}

func slowestAnswer(c healer.Case) (slowest time.Duration, probed bool) {
	for _, s := range c.Superblocks {
		if s.Answer.Asked {
			slowest, probed = max(slowest, s.Answer.Elapsed), true
		}
	}
	return slowest, probed
}

// maxNamed is how many mount points one item names; the rest is counted.
const maxNamed = 3

// firstOf enumerates the first mount points and counts the rest.
func firstOf[T any](mountPoints []T, name func(T) string) string {
	shown := min(len(mountPoints), maxNamed)
	names := make([]string, 0, shown+1)
	for _, p := range mountPoints[:shown] {
		names = append(names, name(p))
	}
	if rest := len(mountPoints) - shown; rest > 0 {
		names = append(names, more(rest, "mount points"))
	}
	return enumerate(names)
}

const (
	// maxShownPathBytes holds kubelet's paths in full, which have some 150 bytes.
	maxShownPathBytes = 240
	// maxShortPathBytes keeps as much of a path as tells two pods' apart.
	maxShortPathBytes = 80
)

// mountPoint names a mount point in full, with its role.
func (w wording) mountPoint(path string) string {
	p := w.at(path)
	switch {
	case path == "":
		return "the volume"
	case p.InContainer != nil:
		return printable.Line(p.InContainer.String(), w.pathBytes+maxReasonBytes)
	case p.Role != "":
		return string(p.Role) + " " + w.path(*p)
	}
	return pathText(path, w.pathBytes)
}

// path shows the path of a mount point. Of kubelet's path for a pod a short one keeps the
// pod's UID, which tells it from those of other pods:
// "…/pods/8f0b2a1c-6c1f-4c0e-9d0a-000000000001/…/mount".
func (w wording) path(p healer.MountPoint) string {
	from := strings.Index(p.Path, "/pods/"+p.PodUID+"/")
	if len(p.Path) <= w.pathBytes || p.PodUID == "" || from < 0 {
		return pathText(p.Path, w.pathBytes)
	}
	return pathText(printable.Ellipsis+"/pods/"+p.PodUID+"/"+printable.Ellipsis+p.Path[strings.LastIndexByte(p.Path, '/'):], w.pathBytes)
}

// mention names a mount point that the message named before: by its role if it is
// the only one of that role, or of that role and pod, because kubelet's paths are long.
func (w wording) mention(path string) string {
	p := w.at(path)
	same := w.withRole(p.Role)
	switch ofPod := slices.DeleteFunc(slices.Clone(same), func(path string) bool { return w.at(path).PodUID != p.PodUID }); {
	case p.Role != "" && len(same) == 1:
		return "the " + p.Role.Noun()
	case p.Role == healer.RoleTarget && p.PodUID != "" && len(ofPod) == 1:
		return "the target of pod " + printable.Line(p.PodUID, maxReasonBytes)
	}
	return w.mountPoint(path)
}

// all mentions mount points: by their role if they are several and all of that role.
func (w wording) all(paths []string) string {
	role := w.at(paths[0]).Role
	if len(paths) > 1 && role != "" && slices.Equal(w.withRole(role), slices.Sorted(slices.Values(paths))) {
		return fmt.Sprintf("all %d %s mount points", len(paths), role)
	}
	return firstOf(paths, w.mention)
}

// withRole returns the paths of all mount points of a role, sorted.
func (w wording) withRole(role healer.Role) []string {
	var paths []string
	for _, p := range w.mountPoints {
		if p.Role == role {
			paths = append(paths, p.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

// at returns the mount point at a path, or an empty one.
func (w wording) at(path string) *healer.MountPoint {
	for i := range w.mountPoints {
		if w.mountPoints[i].Path == path {
			return &w.mountPoints[i]
		}
	}
	return &healer.MountPoint{}
}

// mountPointsOf returns the mount points of the last diagnosis, or of the first when
// there was no other, with the containers of both: they are in a case only while
// something is wrong there.
func mountPointsOf(r *healer.Report) []healer.MountPoint {
	before, after := r.Before.Case.MountPoints, r.After.Case.MountPoints
	if len(after) == 0 {
		return before
	}
	known := map[string]bool{}
	for _, p := range after {
		known[p.Path] = true
	}
	all := slices.Clip(after)
	for _, p := range before {
		if p.InContainer != nil && !known[p.Path] {
			all = append(all, p)
		}
	}
	return all
}
