package nodeserver

import (
	"slices"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxMessageBytes bounds NodeHealerResponse.message, which is one line in a person's
	// terminal or in a controller's log: the trailer and the Admin service have more of it.
	maxMessageBytes = 399
	// maxNoticeBytes bounds the text of an event: the API accepts no longer one
	// (NoteLengthLimit in Kubernetes' pkg/apis/core/validation).
	maxNoticeBytes = 1024
	// maxFullBytes bounds the text in the trailer, of which clients accept 8 KiB by default, in
	// base64.
	maxFullBytes = 4096
)

// message puts a report into one line of at most maxMessageBytes: the verdict, what
// was found at which mount point and by which evidence, what was done, what was
// refused and why, and what a person should do. The first findings are told in full
// and the rest is counted. Abnormal is also a volume of which not all could be judged: only
// one that was seen to work is not (healer.proto).
func message(r healer.Report) (abnormal bool, text string) {
	v := r.Verdict()
	return v == healer.Abnormal || v == healer.NotJudged, newWording(r, maxShortPathBytes).line(maxMessageBytes)
}

// inFull is the message with all that a line of maxFullBytes has room for.
func inFull(r healer.Report) string { return newWording(r, maxShownPathBytes).line(maxFullBytes) }

// notice is the message for an event: the same result reads the same again, but for numbers in
// evidence.
func notice(r healer.Report) string { return newWording(r, maxShownPathBytes).line(maxNoticeBytes) }

// rooms are tried one after the other until a line has room for all that must be said: first
// long evidence goes, then optional sentences, then the names of what is only counted, and last
// all mount points of an item but one.
var rooms = []struct {
	evidenceBytes      int
	optional, allNamed bool
	mountPoints        int
}{
	{maxNoticeBytes, true, true, 3},
	{160, true, true, 3},
	{96, false, true, 3},
	{40, false, true, 3},
	{24, false, true, 3},
	{24, false, false, 3},
	{24, false, false, 1},
}

func (w wording) line(limit int) string {
	verdict := w.r.Verdict()
	start := string(verdict) + ": "
	var text string
	for _, room := range rooms {
		w.evidenceBytes, w.maxNamed = room.evidenceBytes, room.mountPoints
		sections := slices.DeleteFunc(w.sections(verdict), func(s section) bool { return s.optional && !room.optional })
		for i := range sections {
			if !room.allNamed {
				sections[i].short = nil
			}
		}
		var fits bool
		if text, fits = write(sections, limit-len(start)); fits {
			return start + text
		}
	}
	return printable.Line(start+text, limit)
}

func (w wording) sections(v healer.Verdict) []section {
	switch v {
	case healer.Healed:
		return []section{w.found(w.before, w.mountPoint), w.done(), sentence("Now " + w.working(w.mention)), w.refused(), w.restart()}
	case healer.Abnormal:
		if w.r.HealFollows { // what a check refuses and advises is not what comes next
			return []section{w.found(w.foundFirst(), w.mountPoint), sentence("A heal follows")}
		}
		return []section{w.found(w.foundFirst(), w.mountPoint), w.done(), w.afterwards(), w.wouldTry(), w.refused(), w.restart(), w.held(), w.advice()}
	case healer.NotJudged:
		works := section{}
		if len(w.r.After.Case.MountPoints) > 0 {
			works = sentence("Of the rest, " + w.working(w.mention))
		}
		return []section{w.found(w.after, w.mountPoint), w.done(), works, w.refused(), w.restart(), sentence("To do: " + healer.AdviceUnjudged)}
	default:
		return []section{sentence(w.working(w.mountPoint))}
	}
}

func sentence(text string) section { return section{items: []string{text}} }

// done names the steps that ran.
func (w wording) done() section {
	if len(w.r.Steps) == 0 {
		return sentence("Nothing was changed")
	}
	return w.steps("Done: ", w.r.Steps)
}

// wouldTry names the steps of which a call that only checks knows nothing that refuses them.
func (w wording) wouldTry() section {
	var steps []healer.Outcome
	type at struct{ step, mountPoint string }
	refused := map[at]bool{} // the server only checks
	for _, r := range w.r.Refused {
		refused[at{r.Step, r.MountPoint}] = true
	}
	for _, s := range w.r.After.Offers() {
		if w.r.Checked && !refused[at{s.Name, s.MountPoint.Path}] {
			steps = append(steps, healer.Outcome{Step: s.Name, MountPoint: s.MountPoint.Path})
		}
	}
	return w.steps("The call only checks; would try: ", steps)
}

// refused names the steps that would have helped and did not run.
func (w wording) refused() section {
	steps := make([]healer.Outcome, 0, len(w.r.Refused))
	for _, r := range w.r.Refused {
		steps = append(steps, healer.Outcome{Step: r.Step, MountPoint: r.MountPoint, Note: r.Why})
	}
	return w.steps("Refused: ", steps)
}

// steps puts outcomes into words. Those of one step that ended alike are one item.
func (w wording) steps(lead string, outcomes []healer.Outcome) section {
	type result struct {
		step, text string
		failed     bool
	}
	var order []result
	mountPoints := map[result][]string{}
	for _, o := range outcomes {
		k := result{step: o.Step, text: o.Note}
		if o.Err != nil {
			k.text, k.failed = o.Err.Error(), true
		}
		if mountPoints[k] == nil {
			order = append(order, k)
		}
		mountPoints[k] = append(mountPoints[k], o.MountPoint)
	}
	all := section{lead: lead, plural: "steps"}
	for _, k := range order {
		name := printable.Line(k.step, maxReasonBytes)
		item := name + " of " + w.all(unique(mountPoints[k]))
		if k.failed {
			item, name = item+" failed", name+" failed"
		}
		if k.failed || k.text != "" {
			item += " (" + w.text(k.text) + ")"
		}
		all.items, all.short, all.failed = append(all.items, item), append(all.short, name), append(all.failed, k.failed)
	}
	return all
}

// restart says what a heal cannot mend.
func (w wording) restart() section {
	if !w.r.Replaced() {
		return section{}
	}
	return section{items: []string{"Files opened before stay dead until they are opened anew or the pod restarts"}, optional: true}
}

// held says where what is still sick is mounted.
func (w wording) held() section {
	h := w.r.Held
	if h.Mounts == 0 {
		return section{}
	}
	lead := "Held by "
	if h.More {
		lead += "at least "
	}
	lead += counted(h.Mounts, "mounts")
	if len(h.By) == 0 {
		return section{items: []string{lead}, optional: true}
	}
	return section{lead: lead + ", also in ", items: h.By, plural: "containers", optional: true}
}

// advice lists what a person should do about what is left, what comes first at first.
func (w wording) advice() section {
	all := w.r.After.Advice()
	for i, text := range all {
		all[i] = w.text(text)
	}
	return section{lead: "To do: ", items: all, plural: "things", numbered: true}
}
