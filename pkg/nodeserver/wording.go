package nodeserver

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxReasonBytes bounds the names that providers choose: reasons, steps and their
// own.
const maxReasonBytes = 64

// wording puts one report into words: those of the message, of the trailer and of events, of
// the Admin service, of CSI's volume health, and of the log.
type wording struct {
	r *healer.Report
	// before and after are what was wrong first, and what is wrong now, in the order in which
	// it is told.
	before, after []healer.Condition
	// byPath has all mount points that may be named.
	byPath map[string]healer.MountPoint
	// ofRole and ofPod count the mount points of a role, and of a role in a pod.
	ofRole map[healer.Role]int
	ofPod  map[rolePod]int
	// pathBytes bounds each path, which loses its middle.
	pathBytes int
	// maxNamed is how many mount points one item names; the rest is counted.
	maxNamed int
	// evidenceBytes bounds each text that a provider, a kernel or a program wrote. A reason,
	// and whether a step failed, is never cut.
	evidenceBytes int
}

type rolePod struct {
	role healer.Role
	pod  string
}

func newWording(r healer.Report, pathBytes int) wording {
	w := wording{r: &r, byPath: map[string]healer.MountPoint{}, ofRole: map[healer.Role]int{}, ofPod: map[rolePod]int{}, pathBytes: pathBytes, maxNamed: 3, evidenceBytes: maxNoticeBytes}
	// The last diagnosis may know less of them: a pod has ended, and a container is in a case
	// only while something is wrong there.
	for _, c := range []healer.Case{r.Before.Case, r.After.Case} {
		for _, u := range c.Unjudged {
			w.byPath[u.MountPoint.Path] = u.MountPoint
		}
		for _, p := range c.MountPoints {
			w.byPath[p.Path] = p
		}
	}
	for _, p := range w.byPath {
		w.ofRole[p.Role]++
		w.ofPod[rolePod{p.Role, p.PodUID}]++
	}
	w.before, w.after = w.ordered(r.Before), w.ordered(r.After)
	return w
}

// ordered returns what is wrong, mount point by mount point: those that the request named
// first, the worst first at each; and last what is not known. The order does not depend on the
// providers'.
func (w wording) ordered(d healer.Diagnosis) []healer.Condition {
	all := d.AllConditions()
	known := func(c healer.Condition) int { return min(c.Status.Severity(), 1) }
	slices.SortFunc(all, func(a, b healer.Condition) int {
		return cmp.Or(known(b)-known(a), compareMountPoints(w.byPath[a.MountPoint], w.byPath[b.MountPoint]), cmp.Compare(a.MountPoint, b.MountPoint),
			cmp.Compare(a.Provider, b.Provider), cmp.Compare(b.Status.Severity(), a.Status.Severity()),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Advice, b.Advice))
	})
	return slices.Compact(all)
}

// foundFirst is what the call found before it changed anything.
func (w wording) foundFirst() []healer.Condition {
	if len(w.before) > 0 {
		return w.before
	}
	return w.after
}

// found lists conditions, those of one place together. name names a mount point.
func (w wording) found(conditions []healer.Condition, name func(path string) string) section {
	found := section{plural: "findings"}
	for i, c := range conditions {
		reason := printable.Line(string(c.Reason), maxReasonBytes)
		what := reason
		if c.Message != "" {
			what += " (" + w.text(c.Message) + ")"
		}
		if last := len(found.items) - 1; i > 0 && c.MountPoint == conditions[i-1].MountPoint && c.Provider == conditions[i-1].Provider && c.Reason != healer.ReasonUnjudged {
			found.items[last], found.short[last] = found.items[last]+", "+what, found.short[last]+", "+reason
			continue
		}
		what = ": " + what
		if c.Reason == healer.ReasonUnjudged && c.Message != "" {
			what = " is " + w.text(c.Message)
		}
		found.items, found.short = append(found.items, w.placeOf(c, name)+what), append(found.short, reason)
	}
	return found
}

// placeOf names the mount point of a condition, or the provider that failed.
func (w wording) placeOf(c healer.Condition, name func(path string) string) string {
	if c.Reason == healer.ProviderFailed {
		return "provider " + printable.Line(c.Provider, maxReasonBytes)
	}
	return name(c.MountPoint)
}

// afterwards lists what is left, unless nothing was done: what was told before without its
// evidence.
func (w wording) afterwards() section {
	reasonAt := func(c healer.Condition) string { return string(c.Reason) + " " + c.Provider + " " + c.MountPoint }
	named, told, left := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range w.before {
		named[c.MountPoint], told[reasonAt(c)] = true, true
	}
	conditions := slices.Clone(w.after)
	for i, c := range conditions {
		if left[reasonAt(c)] = true; told[reasonAt(c)] {
			conditions[i].Message = ""
		}
	}
	// If nothing was wrong before, what is wrong now was told first.
	same := len(w.before) == 0 || maps.Equal(told, left)
	switch {
	case same && len(w.r.Steps) == 0:
		return section{}
	case same:
		return sentence("Afterwards the same")
	}
	s := w.found(conditions, func(path string) string {
		if named[path] {
			return w.mention(path) // it was named in full before
		}
		return w.mountPoint(path)
	})
	s.lead = "Afterwards "
	return s
}

// text returns what a provider, a kernel or a program wrote as one printable line.
func (w wording) text(s string) string {
	return printable.Line(strings.TrimSpace(s), w.evidenceBytes)
}
