package nodeserver

import (
	"slices"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// adminTextBytes bounds each text in a report.
const adminTextBytes = 1024

// maxListed bounds each list in an answer, which stays below maxResponseBytes with it.
const maxListed = 32

var costs = map[healer.Cost]string{
	healer.Delegate: "delegate", healer.Rebind: "rebind", healer.Replace: "replace",
	healer.Reconnect: "reconnect", healer.Restage: "restage",
}

// adminReport puts a report into a message, with the steps that a heal would try.
func adminReport(r healer.Report, checked bool) *adminpb.VolumeReport {
	_, text := message(r)
	out := &adminpb.VolumeReport{
		Driver: valid(r.Driver), VolumeId: valid(r.Volume.ID), Path: valid(r.Volume.Path),
		Verdict: string(r.Verdict()), Message: text,
	}
	for _, c := range r.After.Conditions {
		out.Conditions = append(out.Conditions, &adminpb.Condition{
			Reason: string(c.Reason), Status: string(c.Status), Acute: c.Acute,
			Message: adminText(c.Message), Advice: adminText(c.Advice), MountPoint: adminText(c.MountPoint),
		})
	}
	for _, o := range r.Steps {
		done := &adminpb.Outcome{Step: o.Step, MountPoint: adminText(o.MountPoint)}
		if o.Err != nil {
			class := healer.Classify(o.Step, "", o.Err)
			done.Error, done.Tier, done.ErrorType = adminText(o.Err.Error()), string(class.Tier), string(class.Type)
		}
		out.Outcomes = append(out.Outcomes, done)
	}
	if checked {
		out.Steps = wouldRun(r.After)
	}
	out.Conditions = first(out.Conditions, &out.Omitted)
	out.Outcomes = first(out.Outcomes, &out.Omitted)
	out.Steps = first(out.Steps, &out.Omitted)
	return out
}

// first returns what may be listed of all, and adds the number of the rest to omitted.
func first[T any](all []T, omitted *int32) []T {
	listed := all[:min(len(all), maxListed)]
	*omitted += int32(len(all) - len(listed)) //nolint:gosec // there are not that many
	return listed
}

// wouldRun returns the steps that heal a condition there is: those that may run, the
// least invasive first, then those that something known refuses.
func wouldRun(d healer.Diagnosis) (steps []*adminpb.Step) {
	may := d.Offers()
	slices.SortStableFunc(may, func(a, b healer.Step) int { return int(a.Cost) - int(b.Cost) })
	for _, s := range d.Steps {
		heals := func(c healer.Condition) bool { return s.CanHeal(c.Reason) }
		if s.Refused != "" && slices.ContainsFunc(d.Conditions, heals) {
			may = append(may, s)
		}
	}
	for _, s := range may {
		steps = append(steps, &adminpb.Step{Step: s.Name, MountPoint: adminText(s.MountPoint.String()), Cost: costs[s.Cost], Refused: adminText(s.Refused)})
	}
	return steps
}

func adminText(s string) string { return printable.Line(s, adminTextBytes) }
