package nodeserver

import (
	"slices"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// adminTextBytes bounds each text in a report.
const adminTextBytes = 1024

const (
	// maxListed bounds the list of a volume's paths, maxReported each list in a report, which
	// stays below maxResponseBytes with it.
	maxListed   = 32
	maxReported = 24
)

var costs = map[healer.Cost]string{
	healer.Delegate: "delegate", healer.Rebind: "rebind", healer.Replace: "replace",
	healer.Reconnect: "reconnect", healer.Restage: "restage",
}

// adminReport puts a report into a message, with the steps that a heal would try.
func adminReport(r healer.Report, checked bool) *adminpb.VolumeReport {
	_, text := message(r)
	w := newWording(r, maxShownPathBytes)
	out := &adminpb.VolumeReport{
		Driver: valid(r.Driver), VolumeId: valid(r.Volume.ID), Path: valid(r.Volume.Path),
		Verdict: string(r.Verdict()), Message: text,
	}
	out.Conditions = w.conditions(first(w.after, maxReported, &out.Omitted))
	steps := slices.Clone(r.Steps)
	if len(steps) > maxReported { // what failed is listed
		slices.SortStableFunc(steps, func(a, b healer.Outcome) int { return failed(b) - failed(a) })
	}
	for _, o := range first(steps, maxReported, &out.Omitted) {
		done := &adminpb.Outcome{Step: printable.Line(o.Step, maxReasonBytes), MountPoint: adminText(o.MountPoint), Place: w.place(o.MountPoint), Note: adminText(o.Note)}
		if o.Err != nil {
			class := healer.Classify(o.Err)
			done.Error, done.Tier, done.ErrorType = adminText(o.Err.Error()), string(class.Tier), string(class.Type)
		}
		out.Outcomes = append(out.Outcomes, done)
	}
	if len(r.Steps) > 0 {
		out.Before = w.conditions(first(w.before, maxReported, &out.Omitted))
		for _, c := range out.Before {
			c.Advice, c.MountPoint = "", ""
		}
	}
	if checked {
		out.Steps = w.wouldRun(first(mayRun(r.After), maxReported, &out.Omitted))
	} else {
		for _, s := range first(r.Refused, maxReported, &out.Omitted) {
			out.Steps = append(out.Steps, &adminpb.Step{Step: printable.Line(s.Step, maxReasonBytes), MountPoint: adminText(s.MountPoint), Place: w.place(s.MountPoint), Refused: adminText(s.Why)})
		}
	}
	more := []section{w.restart(), w.held()}
	switch r.Verdict() {
	case healer.Abnormal:
		for _, item := range first(w.advice().items, maxReported, &out.Omitted) {
			out.Advice = append(out.Advice, adminText(item))
		}
	case healer.NotJudged:
		out.Advice = []string{healer.AdviceUnjudged}
		fallthrough
	default:
		more = []section{sentence(w.working(w.mention)), w.restart()}
	}
	for _, s := range more {
		if len(s.items) > 0 {
			out.Notes = append(out.Notes, adminText(s.text(len(s.items))))
		}
	}
	return out
}

func failed(o healer.Outcome) int {
	if o.Err != nil {
		return 1
	}
	return 0
}

// conditions puts conditions into messages.
func (w wording) conditions(of []healer.Condition) (all []*adminpb.Condition) {
	for _, c := range of {
		all = append(all, &adminpb.Condition{
			Reason: adminText(string(c.Reason)), Status: string(c.Status), Acute: c.Acute, Message: adminText(c.Message),
			Advice: adminText(c.Advice), MountPoint: adminText(c.MountPoint), Place: adminText(w.placeOf(c, w.place)),
		})
	}
	return all
}

// first returns what may be listed of all, and adds the number of the rest to omitted.
func first[T any](all []T, most int, omitted *int32) []T {
	listed := all[:min(len(all), most)]
	*omitted += int32(len(all) - len(listed)) //nolint:gosec // there are not that many
	return listed
}

// mayRun returns the steps that heal a condition there is: those that may run, the
// least invasive first, then those that something known refuses.
func mayRun(d healer.Diagnosis) (may []healer.Step) {
	may = d.Offers()
	var reasons []healer.Reason
	for _, c := range d.Conditions {
		if !slices.Contains(reasons, c.Reason) {
			reasons = append(reasons, c.Reason)
		}
	}
	for _, s := range d.Steps {
		if s.Refused != "" && slices.ContainsFunc(reasons, s.CanHeal) {
			may = append(may, s)
		}
	}
	return may
}

func (w wording) wouldRun(may []healer.Step) (steps []*adminpb.Step) {
	for _, s := range may {
		steps = append(steps, &adminpb.Step{
			Step: printable.Line(s.Name, maxReasonBytes), MountPoint: adminText(s.MountPoint.String()), Place: w.place(s.MountPoint.Path),
			Cost: costs[s.Cost], Refused: adminText(s.Refused),
		})
	}
	return steps
}

// place is what a person calls a mount point. Its full path is beside it.
func (w wording) place(path string) string { return printable.Line(w.mention(path), maxShownPathBytes) }

func adminText(s string) string { return printable.Line(s, adminTextBytes) }
