package nodeserver

import (
	"cmp"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxReasonBytes bounds the names that providers choose: reasons, steps and their
// own.
const maxReasonBytes = 64

// group is what is wrong at one mount point.
type group struct {
	path       string
	conditions []healer.Condition
}

// groups returns the conditions mount point by mount point: those that the request
// named first, the worst first at each. The order does not depend on the providers'.
func groups(d healer.Diagnosis) []group {
	byPath := map[string][]healer.Condition{}
	for _, c := range d.Conditions {
		if !slices.Contains(byPath[c.MountPoint], c) {
			byPath[c.MountPoint] = append(byPath[c.MountPoint], c)
		}
	}
	mountPoints := make(map[string]healer.MountPoint, len(d.Case.MountPoints))
	for _, p := range slices.Backward(d.Case.MountPoints) {
		mountPoints[p.Path] = p
	}
	out := make([]group, 0, len(byPath))
	for path, conditions := range byPath {
		slices.SortFunc(conditions, func(a, b healer.Condition) int {
			return cmp.Or(cmp.Compare(b.Status.Severity(), a.Status.Severity()),
				cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Advice, b.Advice))
		})
		out = append(out, group{path, conditions})
	}
	slices.SortFunc(out, func(a, b group) int {
		return cmp.Or(compareMountPoints(mountPoints[a.path], mountPoints[b.path]), cmp.Compare(a.path, b.path))
	})
	return out
}

// found lists what is wrong, mount point by mount point, then the providers that failed.
func (w wording) found(d healer.Diagnosis) section { return w.foundBut(d, nil, w.mountPoint) }

// foundBut leaves out the evidence of what was told before, and tells of the mount points
// first at which there is something new. name names a mount point.
func (w wording) foundBut(d healer.Diagnosis, told []string, name func(path string) string) section {
	all := groups(d)
	isNew := func(c healer.Condition) bool { return !slices.Contains(told, reasonAt(c)) }
	slices.SortStableFunc(all, func(a, b group) int {
		switch aNew, bNew := slices.ContainsFunc(a.conditions, isNew), slices.ContainsFunc(b.conditions, isNew); {
		case aNew == bNew:
			return 0
		case aNew:
			return -1
		}
		return 1
	})
	found := section{plural: "findings"}
	for _, g := range all {
		var reasons, what []string
		for _, c := range g.conditions {
			text := printable.Line(string(c.Reason), maxReasonBytes)
			reasons = append(reasons, text)
			if c.Message != "" && isNew(c) {
				text += " (" + w.text(c.Message) + ")"
			}
			what = append(what, text)
		}
		found.items = append(found.items, name(g.path)+": "+strings.Join(what, ", "))
		found.short = append(found.short, strings.Join(unique(reasons), ", "))
	}
	unjudged := w.unjudgedOf(d)
	found.items = append(found.items, unjudged...)
	found.short = append(found.short, slices.Repeat([]string{string(healer.ReasonUnjudged)}, len(unjudged))...)
	for _, f := range d.Failures {
		found.items = append(found.items, failureText(f)+" ("+w.text(errorText(f.Err))+")")
		found.short = append(found.short, failureText(f))
	}
	return found
}

// unjudged lists the mount points that could not be judged.
func (w wording) unjudged() section {
	return section{items: w.unjudgedOf(w.r.After), plural: "paths"}
}

func (w wording) unjudgedOf(d healer.Diagnosis) (items []string) {
	for _, u := range d.Case.Unjudged {
		items = append(items, string(u.MountPoint.Role)+" "+w.path(u.MountPoint)+" is empty and "+w.text(u.Why))
	}
	return items
}

// foundFirst lists what the call found before it changed anything.
func (w wording) foundFirst() section {
	if !w.r.Before.Sick() {
		return w.found(w.r.After)
	}
	return w.found(w.r.Before)
}

// afterwards lists what is left, unless nothing was done.
func (w wording) afterwards() section {
	before, after := reasonsAt(w.r.Before), reasonsAt(w.r.After)
	// Compared without the evidence, which holds times and counts. If nothing was
	// wrong before, foundFirst told what is wrong after.
	same := !w.r.Before.Sick() || slices.Equal(before, after)
	switch {
	case same && len(w.r.Steps) == 0:
		return section{}
	case same:
		return sentence("Afterwards the same")
	}
	s := w.foundBut(w.r.After, before, func(path string) string {
		if slices.ContainsFunc(w.r.Before.Conditions, func(c healer.Condition) bool { return c.MountPoint == path }) {
			return w.mention(path) // it was named in full before
		}
		return w.mountPoint(path)
	})
	s.lead = "Afterwards "
	return s
}

// reasonsAt returns what is wrong, each reason with its mount point, and the
// providers that failed.
func reasonsAt(d healer.Diagnosis) []string {
	var out []string
	for _, c := range d.Conditions {
		out = append(out, reasonAt(c))
	}
	for _, f := range d.Failures {
		out = append(out, f.Provider)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func reasonAt(c healer.Condition) string { return string(c.Reason) + " " + c.MountPoint }

func failureText(f healer.ProviderFailure) string {
	return "provider " + printable.Line(f.Provider, maxReasonBytes) + " failed"
}

func errorText(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}
