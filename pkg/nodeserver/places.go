package nodeserver

import (
	"cmp"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// compareMountPoints puts the mount points of the request first, published before staged
// before containers.
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

// working says of a healthy diagnosis where it looked and how the storage
// answered.
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
	shown := min(len(mountPoints), max(w.items, 1))
	items := make([]string, 0, shown+1)
	for _, p := range mountPoints[:shown] {
		items = append(items, name(p.Path)+nature(d.Case, p))
	}
	if rest := len(mountPoints) - shown; rest > 0 {
		items = append(items, more(rest, shown, "mount points"))
	}
	if slowest, asked := slowestAnswer(d.Case); asked {
		return enumerate(items) + " answered" + w.took(" in ", slowest)
	}
	return enumerate(items) + " checked, without asking the storage"
}

// nature is what is mounted at a mount point, for a healthy one.
func nature(c healer.Case, p healer.MountPoint) string {
	if p.Inspect.Kind == host.KindBlock {
		name := p.Inspect.Rdev.String()
		if d := c.Superblocks[p.Inspect.Rdev].Device; d != nil && d.Name != "" {
			name = d.Name
		}
		return " (block device " + oneLine(name, maxReasonBytes) + ")"
	}
	top, ok := p.Top()
	if !ok {
		return ""
	}
	access := "rw"
	if top.SuperReadOnly || top.Attr.Has(host.AttrReadOnly) {
		access = "ro"
	}
	return " (" + oneLine(top.FSType, maxReasonBytes) + ", " + access + ")"
}

func slowestAnswer(c healer.Case) (slowest time.Duration, asked bool) {
	for _, s := range c.Superblocks {
		if s.Answer.Asked {
			slowest, asked = max(slowest, s.Answer.Elapsed), true
		}
	}
	return slowest, asked
}

// mount point names a mount point in full, with what it is for.
func (w wording) mountPoint(path string) string {
	if path == "" {
		return "the volume"
	}
	if in := w.insideAt(path); in != nil {
		return oneLine(in.String(), w.path)
	}
	shown := pathText(path, w.path)
	if role := w.role(path); role != "" {
		return string(role) + " " + shown
	}
	return shown
}

// insideAt gives what a container has at a path that leads into it.
func (w wording) insideAt(path string) *healer.InContainer {
	for _, p := range w.mountPoints {
		if p.Path == path && p.InContainer != nil {
			return p.InContainer
		}
	}
	return nil
}

// mention names a mount point that the message named before: by its role when there
// is only one of that role, because kubelet's paths are long.
func (w wording) mention(path string) string {
	role := w.role(path)
	same := 0
	for _, p := range w.mountPoints {
		if p.Role == role {
			same++
		}
	}
	if role == "" || same != 1 {
		return w.mountPoint(path)
	}
	return "the " + role.Noun()
}

// wholeRole gives the role whose mount points these are, all of them and no others,
// when there are several.
func (w wording) wholeRole(paths []string) healer.Role {
	if len(paths) < 2 {
		return ""
	}
	role := w.role(paths[0])
	var all []string
	for _, p := range w.mountPoints {
		if p.Role == role {
			all = append(all, p.Path)
		}
	}
	slices.Sort(all)
	if !slices.Equal(all, slices.Sorted(slices.Values(paths))) {
		return ""
	}
	return role
}

func (w wording) role(path string) healer.Role {
	for _, p := range w.mountPoints {
		if p.Path == path {
			return p.Role
		}
	}
	return ""
}

// mountPointsOf is the report's last view, or the first when there was no other, with
// the containers of both: they are mount points only while something is wrong there.
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
