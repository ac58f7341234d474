package nodeserver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxMessageBytes bounds NodeHealerResponse.message, and the text of an event: the API
// accepts no longer one (NoteLengthLimit in Kubernetes' pkg/apis/core/validation).
const maxMessageBytes = 1024

// message puts a report into one line of at most maxMessageBytes: the verdict, what
// was found at which mount point and by which evidence, what was done, what was
// refused and why, and what a person should do. The first findings are told in full
// and the rest is counted.
func message(r healer.Report) (abnormal bool, text string) {
	return r.Verdict() == healer.Abnormal, wording{r: &r, mountPoints: mountPointsOf(&r)}.line()
}

// notice is the message without how long anything took: the same result reads the
// same again, so that repetitions can be recognised.
func notice(r healer.Report) string {
	return wording{r: &r, mountPoints: mountPointsOf(&r), timeless: true}.line()
}

// wording puts one report into words.
type wording struct {
	r *healer.Report
	// mountPoints are all that may be named.
	mountPoints []healer.MountPoint
	timeless    bool
}

func (w wording) line() string {
	verdict := w.r.Verdict()
	start := string(verdict) + ": "
	return printable.Line(start+write(w.sections(verdict), maxMessageBytes-len(start)), maxMessageBytes)
}

func (w wording) sections(v healer.Verdict) []section {
	switch v {
	case healer.Healed:
		return []section{w.found(w.r.Before), w.done(), sentence("Now " + w.working(w.r.After, w.mention)), w.refused(), w.restart()}
	case healer.Abnormal:
		if w.r.HealFollows { // what a check refuses and advises is not what comes next
			return []section{w.foundFirst(), sentence("A heal follows")}
		}
		return []section{w.foundFirst(), w.done(), w.afterwards(), w.refused(), w.restart(), w.held(), w.advice()}
	default:
		return []section{sentence(w.working(w.r.After, w.mountPoint))}
	}
}

func sentence(text string) section { return section{items: []string{text}} }

// done names the steps that ran: those on the host first, then those that failed in
// containers.
func (w wording) done() section {
	if len(w.r.Steps) == 0 {
		return sentence("Nothing was changed")
	}
	rank := func(o healer.Outcome) int {
		switch {
		case w.at(o.MountPoint).InContainer == nil:
			return 0
		case o.Err != nil:
			return 1
		}
		return 2
	}
	steps := slices.Clone(w.r.Steps)
	slices.SortStableFunc(steps, func(a, b healer.Outcome) int { return rank(a) - rank(b) })
	return section{lead: "Done: ", items: w.steps(steps, !w.timeless), plural: "steps"}
}

// refused names the steps that would have helped and did not run.
func (w wording) refused() section {
	steps := make([]healer.Outcome, 0, len(w.r.Refused))
	for _, r := range w.r.Refused {
		steps = append(steps, healer.Outcome{Step: r.Step, MountPoint: r.MountPoint, Note: r.Why})
	}
	return section{lead: "Refused: ", items: w.steps(steps, false), plural: "steps"}
}

// steps puts outcomes into words. Those of one step that ended alike are one item,
// with the longest time that one of them took.
func (w wording) steps(outcomes []healer.Outcome, timed bool) []string {
	type result struct {
		step, text string
		failed     bool
	}
	var order []result
	mountPoints, longest := map[result][]string{}, map[result]time.Duration{}
	for _, o := range outcomes {
		k := result{step: o.Step, text: o.Note}
		if o.Err != nil {
			k.text, k.failed = o.Err.Error(), true
		}
		if mountPoints[k] == nil {
			order = append(order, k)
		}
		mountPoints[k], longest[k] = append(mountPoints[k], o.MountPoint), max(longest[k], o.Elapsed)
	}
	items := make([]string, 0, len(order))
	for _, k := range order {
		item := printable.Line(k.step, maxReasonBytes) + " of " + w.all(unique(mountPoints[k]))
		word := " in "
		if k.failed {
			item, word = item+" failed", " after "
		}
		if timed {
			item += word + rounded(longest[k])
		}
		if k.failed || k.text != "" {
			item += " (" + w.text(k.text) + ")"
		}
		items = append(items, item)
	}
	return items
}

// restart says what a heal cannot mend.
func (w wording) restart() section {
	if !w.r.Replaced() {
		return section{}
	}
	return sentence("Files opened before stay dead until they are opened anew or the pod restarts")
}

// held says where what is still sick is mounted.
func (w wording) held() section {
	h := w.r.Held
	lead := "Held by 1 mount"
	if h.Mounts != 1 {
		lead = fmt.Sprintf("Held by %d mounts", h.Mounts)
	}
	if h.Mounts > 0 && len(h.By) == 0 {
		return sentence(lead)
	}
	return section{lead: lead + ", also in ", items: h.By, plural: "containers"}
}

// advice lists what a person should do about what is left.
func (w wording) advice() section {
	var items []string
	for _, g := range groups(w.r.After) {
		for _, c := range g.conditions {
			if c.Advice != "" {
				items = append(items, w.text(c.Advice))
			}
		}
	}
	return section{lead: "To do: ", items: unique(items), plural: "things"}
}

// text returns what a provider, a kernel or a program wrote as one printable line.
func (wording) text(s string) string {
	return printable.Line(strings.TrimSpace(s), maxMessageBytes)
}

// rounded returns a duration with as many digits as a reader can use.
func rounded(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
