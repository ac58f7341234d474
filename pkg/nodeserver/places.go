package nodeserver

import (
	"cmp"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// comparePlaces puts the places of the request first, published before staged
// before containers.
func comparePlaces(a, b healer.Place) int {
	rank := func(p healer.Place) int {
		at := slices.Index([]healer.Role{healer.Published, healer.Staged, healer.Container, ""}, p.Role)
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
	if len(d.Case.Places) == 0 {
		return "nothing is wrong with the volume"
	}
	places := slices.DeleteFunc(slices.Clone(d.Case.Places), func(p healer.Place) bool {
		return len(p.Stack) == 0 && p.Role == healer.Staged // a driver that stages nothing
	})
	if len(places) == 0 {
		return "nothing is mounted at " + name(d.Case.Places[0].Path) + ", and no record shows that anything was"
	}
	slices.SortFunc(places, comparePlaces)
	shown := min(len(places), max(w.items, 1))
	items := make([]string, 0, shown+1)
	for _, p := range places[:shown] {
		items = append(items, name(p.Path)+nature(d.Case, p))
	}
	if rest := len(places) - shown; rest > 0 {
		items = append(items, more(rest, shown, "places"))
	}
	if slowest, asked := slowestAnswer(d.Case); asked {
		return enumerate(items) + " answered" + w.took(" in ", slowest)
	}
	return enumerate(items) + " checked, without asking the storage"
}

// nature is what is mounted at a place, for a healthy one.
func nature(c healer.Case, p healer.Place) string {
	if p.Look.Kind == host.KindBlock {
		name := p.Look.Rdev.String()
		if d := c.Superblocks[p.Look.Rdev].Device; d != nil && d.Name != "" {
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

// place names a place in full, with what it is for.
func (w wording) place(path string) string {
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
func (w wording) insideAt(path string) *healer.Inside {
	for _, p := range w.places {
		if p.Path == path && p.Inside != nil {
			return p.Inside
		}
	}
	return nil
}

// mention names a place that the message named before: by its role when there
// is only one of that role, because kubelet's paths are long.
func (w wording) mention(path string) string {
	role := w.role(path)
	same := 0
	for _, p := range w.places {
		if p.Role == role {
			same++
		}
	}
	if role == "" || same != 1 {
		return w.place(path)
	}
	return "the " + string(role) + " place"
}

// wholeRole gives the role whose places these are, all of them and no others,
// when there are several.
func (w wording) wholeRole(paths []string) healer.Role {
	if len(paths) < 2 {
		return ""
	}
	role := w.role(paths[0])
	var all []string
	for _, p := range w.places {
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
	for _, p := range w.places {
		if p.Path == path {
			return p.Role
		}
	}
	return ""
}

// placesOf is the report's last view, or the first when there was no other, with
// the containers of both: they are places only while something is wrong there.
func placesOf(r *healer.Report) []healer.Place {
	before, after := r.Before.Case.Places, r.After.Case.Places
	if len(after) == 0 {
		return before
	}
	known := map[string]bool{}
	for _, p := range after {
		known[p.Path] = true
	}
	all := slices.Clip(after)
	for _, p := range before {
		if p.Inside != nil && !known[p.Path] {
			all = append(all, p)
		}
	}
	return all
}
