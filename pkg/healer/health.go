package healer

import "slices"

// ProviderFailed is the reason that AllConditions has for a provider that failed.
const ProviderFailed Reason = "ProviderFailed"

// ReasonUnjudged is the reason that AllConditions has for a mount point in Case.Unjudged.
const ReasonUnjudged Reason = "Unjudged"

// AdviceUnjudged is about such mount points.
const AdviceUnjudged = "if its pod should have the volume there, name that path (healerctl heal --path)"

// CheckUnanswered is the reason of the HealthEntry of a volume whose checks have had no
// answer for long. No condition has it.
const CheckUnanswered Reason = "CheckUnanswered"

// AllConditions returns all for which the volume is not healthy, as every answer tells it: the
// conditions, then one for each mount point that could not be judged, and one for each provider
// that failed. There are none of a healthy volume.
func (d Diagnosis) AllConditions() []Condition {
	all := slices.Clone(d.Conditions)
	for _, u := range d.Case.Unjudged {
		all = append(all, Condition{
			Status: Unknown, Reason: ReasonUnjudged, MountPoint: u.MountPoint.Path, Message: "empty and " + u.Why, Advice: AdviceUnjudged,
		})
	}
	for _, f := range d.Failures {
		c := Condition{Status: Unknown, Reason: ProviderFailed, Provider: f.Provider, Message: "no reason given"}
		if f.Err != nil {
			c.Message = f.Err.Error()
		}
		all = append(all, c)
	}
	return all
}

// HealthEntry is one reason with the status that it amounts to: an entry of CSI 1.13's
// VolumeHealth without its message.
type HealthEntry struct {
	Status Status
	Reason Reason
}

// HealthEntries returns each reason of AllConditions once, with the worst status that it was
// found with at any mount point.
func (d Diagnosis) HealthEntries() (entries []HealthEntry) {
	for _, c := range d.AllConditions() {
		at := slices.IndexFunc(entries, func(e HealthEntry) bool { return e.Reason == c.Reason })
		switch {
		case at < 0:
			entries = append(entries, HealthEntry{Status: c.Status, Reason: c.Reason})
		case c.Status.Severity() > entries[at].Status.Severity():
			entries[at].Status = c.Status
		}
	}
	return entries
}
