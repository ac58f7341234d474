package nodeserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxReasonBytes bounds the names that providers choose: reasons, steps and
// their own.
const maxReasonBytes = 64

// group is what is wrong at one place.
type group struct {
	path       string
	conditions []healer.Condition
}

// groups sorts conditions mount point by mount point: those that the request named first,
// worst first at each. Whatever order the providers used, the same case reads
// the same.
func (w wording) groups(d healer.Diagnosis) []group {
	by := map[string][]healer.Condition{}
	for _, c := range d.Conditions {
		if !slices.Contains(by[c.MountPoint], c) {
			by[c.MountPoint] = append(by[c.MountPoint], c)
		}
	}
	mountPoints := make(map[string]healer.MountPoint, len(d.Case.MountPoints))
	for _, p := range slices.Backward(d.Case.MountPoints) {
		mountPoints[p.Path] = p
	}
	out := make([]group, 0, len(by))
	for path, conditions := range by {
		slices.SortFunc(conditions, func(a, b healer.Condition) int {
			return cmp.Or(cmp.Compare(severity(a.Status), severity(b.Status)),
				cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Advice, b.Advice))
		})
		out = append(out, group{path, conditions})
	}
	slices.SortFunc(out, func(a, b group) int {
		return cmp.Or(compareMountPoints(mountPoints[a.path], mountPoints[b.path]), cmp.Compare(a.path, b.path))
	})
	return out
}

func severity(s healer.Status) int {
	return slices.Index([]healer.Status{healer.DataLoss, healer.Inaccessible, healer.Degraded}, s)
}

// found tells a diagnosis mount point by mount point. What the budget leaves out is summed
// up by reason, so that no reason is ever missing.
func (w wording) found(d healer.Diagnosis) string {
	groups := w.groups(d)
	shown := min(len(groups), w.items)
	items := make([]string, 0, shown+len(d.Failures)+1)
	for _, g := range groups[:shown] {
		what := make([]string, 0, len(g.conditions))
		for _, c := range g.conditions {
			what = append(what, w.condition(c))
		}
		items = append(items, w.mountPoint(g.path)+": "+strings.Join(what, ", "))
	}
	if rest := groups[shown:]; len(rest) > 0 {
		items = append(items, more(len(rest), shown, "mount points")+": "+sums(rest))
	}
	failures := make([]string, 0, len(d.Failures))
	for _, f := range d.Failures {
		failures = append(failures, "provider "+oneLine(f.Provider, maxReasonBytes)+" could not look ("+w.text(errorText(f.Err))+")")
	}
	if len(failures) > 0 {
		items = append(items, w.list(failures, "providers"))
	}
	return strings.Join(items, "; ")
}

func (w wording) condition(c healer.Condition) string {
	reason := oneLine(string(c.Reason), maxReasonBytes)
	if c.Message == "" {
		return reason
	}
	return reason + " (" + w.text(c.Message) + ")"
}

// sums counts the mount points of each reason.
func sums(groups []group) string {
	count := map[healer.Reason]int{}
	var order []healer.Reason
	for _, g := range groups {
		for _, c := range g.conditions {
			if count[c.Reason]++; count[c.Reason] == 1 {
				order = append(order, c.Reason)
			}
		}
	}
	out := make([]string, 0, len(order))
	for _, reason := range order {
		text := oneLine(string(reason), maxReasonBytes)
		if n := count[reason]; n > 1 {
			text += fmt.Sprintf(" ×%d", n)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// foundFirst is what the call found before it did anything.
func (w wording) foundFirst() string {
	if w.r.Before.Healthy() {
		return w.found(w.r.After)
	}
	return w.found(w.r.Before)
}

// afterwards tells what is left when something was done in between.
func (w wording) afterwards() string {
	if len(w.r.Steps) == 0 && w.sameReasons() {
		return ""
	}
	if w.sameReasons() {
		return "Afterwards the same"
	}
	before := reasonsAt(w.r.Before)
	news := func(key string) bool { return !slices.Contains(before, key) }
	if !slices.ContainsFunc(reasonsAt(w.r.After), news) {
		const short = 40 // all of it was said before
		w.budget.text = min(w.budget.text, short)
	}
	return "Afterwards " + w.found(w.r.After)
}

// sameReasons compares by reason and mount point: evidence holds times and counts.
func (w wording) sameReasons() bool {
	if w.r.Before.Healthy() {
		return true // foundFirst told After already
	}
	return slices.Equal(reasonsAt(w.r.Before), reasonsAt(w.r.After))
}

// reasonsAt gives what is wrong, each with its mount point, and the providers that failed.
func reasonsAt(d healer.Diagnosis) []string {
	var out []string
	for _, c := range d.Conditions {
		out = append(out, string(c.Reason)+" "+c.MountPoint)
	}
	for _, f := range d.Failures {
		out = append(out, f.Provider)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func errorText(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}
