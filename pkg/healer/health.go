package healer

import "slices"

// ProviderFailed is the reason of the HealthEntry that stands for providers that failed.
// No condition has it.
const ProviderFailed Reason = "ProviderFailed"

// ReasonUnjudged is the reason of the HealthEntry of a volume with a mount point in
// Case.Unjudged. No condition has it.
const ReasonUnjudged Reason = "Unjudged"

// CheckUnanswered is the reason of the HealthEntry of a volume whose checks have had no
// answer for long. No condition has it.
const CheckUnanswered Reason = "CheckUnanswered"

// HealthEntry is one reason with the status that it amounts to: an entry of CSI 1.13's
// VolumeHealth without its message.
type HealthEntry struct {
	Status Status
	Reason Reason
}

// HealthEntries returns each reason once, with the worst status that it was found with at
// any mount point, then ReasonUnjudged if a mount point could not be judged, and
// ProviderFailed if a provider failed. There are none of a healthy volume.
func (d Diagnosis) HealthEntries() (entries []HealthEntry) {
	for _, c := range d.Conditions {
		at := slices.IndexFunc(entries, func(e HealthEntry) bool { return e.Reason == c.Reason })
		switch {
		case at < 0:
			entries = append(entries, HealthEntry{Status: c.Status, Reason: c.Reason})
		case c.Status.Severity() > entries[at].Status.Severity():
			entries[at].Status = c.Status
		}
	}
	if len(d.Case.Unjudged) > 0 {
		entries = append(entries, HealthEntry{Status: Unknown, Reason: ReasonUnjudged})
	}
	if len(d.Failures) > 0 {
		entries = append(entries, HealthEntry{Status: Unknown, Reason: ProviderFailed})
	}
	return entries
}
