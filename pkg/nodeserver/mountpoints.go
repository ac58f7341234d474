package nodeserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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

// working says of what is healthy which mount points were examined, and whether the storage
// answered.
func (w wording) working(name func(path string) string) string {
	c := w.r.After.Case
	if len(c.MountPoints) == 0 {
		return "nothing is wrong with the volume"
	}
	mountPoints := slices.DeleteFunc(slices.Clone(c.MountPoints), func(p healer.MountPoint) bool {
		return len(p.Stack) == 0 && p.Role == healer.RoleStaging // a driver that stages nothing
	})
	if len(mountPoints) == 0 {
		return "nothing is mounted at " + name(c.MountPoints[0].Path) + ", and no record shows that anything was"
	}
	slices.SortFunc(mountPoints, compareMountPoints)
	paths := make([]string, 0, len(mountPoints))
	for _, p := range mountPoints {
		paths = append(paths, p.Path)
	}
	text := w.firstOf(paths, func(path string) string { return name(path) + mounted(c, w.byPath[path]) })
	for _, sb := range c.Superblocks {
		if sb.Answer.Asked {
			return text + " answered"
		}
	}
	return text + " checked, storage not probed"
}

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

// firstOf names the first mount points and counts the rest: "a", "a and b", "a, b and c".
func (w wording) firstOf(paths []string, name func(path string) string) string {
	var names []string
	for _, path := range paths[:min(len(paths), w.maxNamed)] {
		names = append(names, name(path))
	}
	if rest := len(paths) - len(names); rest > 0 {
		names = append(names, more(rest, "mount points"))
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

const (
	// maxShownPathBytes holds kubelet's paths in full, which have some 150 bytes.
	maxShownPathBytes = 240
	// maxShortPathBytes keeps as much of a path as tells two pods' apart.
	maxShortPathBytes = 80
)

// mountPoint names a mount point in full, with its role.
func (w wording) mountPoint(path string) string {
	p := w.byPath[path]
	switch {
	case path == "":
		return "the volume"
	case p.InContainer != nil:
		return printable.Line(p.InContainer.String(), w.pathBytes+maxReasonBytes)
	case p.Role != "":
		return string(p.Role) + " " + w.path(p)
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
	p := w.byPath[path]
	switch {
	case p.Role != "" && w.ofRole[p.Role] == 1:
		return "the " + p.Role.Noun()
	case p.Role == healer.RoleTarget && p.PodUID != "" && w.ofPod[rolePod{p.Role, p.PodUID}] == 1:
		return "the target of pod " + printable.Line(p.PodUID, maxReasonBytes)
	}
	return w.mountPoint(path)
}

// all mentions mount points: by their role if they are several, and all of that role.
func (w wording) all(paths []string) string {
	role := w.byPath[paths[0]].Role
	other := func(path string) bool { return w.byPath[path].Role != role }
	if len(paths) > 1 && role != "" && w.ofRole[role] == len(paths) && !slices.ContainsFunc(paths, other) {
		return fmt.Sprintf("all %d %s mount points", len(paths), role)
	}
	return w.firstOf(paths, w.mention)
}
