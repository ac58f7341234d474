package cluster

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The reasons of events. They are part of the interface, as a condition's are.
const (
	reasonAbnormal = "VolumeAbnormal"
	reasonHealed   = "VolumeHealed"
	reasonRefused  = "VolumeHealRefused"
	// reasonHealthy is for a volume that recovered without a heal.
	reasonHealthy = "VolumeHealthy"
)

// maxTextBytes bounds an event's message, as the API does.
const maxTextBytes = 1024

type message struct {
	reason, severity, text string
	// condition is the first one of those that an event tells of; empty: its own reason is
	// explained.
	condition healer.Reason
}

// linked returns the text with a link to what the condition, or else the event, means.
func (m message) linked() string {
	end := ". " + api.ConditionsURL + cmp.Or(string(m.condition), m.reason)
	return printable.Line(m.text, maxTextBytes-len(end)) + end
}

// reported is what was last reported of a volume.
type reported struct {
	conditions volumeConditions
	// said has what else was reported since the volume became abnormal: the refusals by mount
	// point, each failed step with the type of its error, and by why that the loop leaves the
	// volume alone.
	said map[string]string
}

// maxSaid bounds that: what would be said besides is not.
const maxSaid = 128

// after returns what has been reported after a report, and the messages for that. A
// volume that is healthy in its first check is not reported, and neither is a
// healthy mount point while another one is not.
func (d reported) after(r healer.Report, conditions volumeConditions, words func(healer.Report) string) (reported, []message) {
	next := reported{conditions, map[string]string{}}
	if len(conditions) > 0 {
		maps.Copy(next.said, d.said)
	}
	tell := func(reason, severity string) message {
		m := message{reason: reason, severity: severity, text: line(words(r))}
		if conditions := slices.Concat(r.After.Conditions, r.Before.Conditions); len(conditions) > 0 {
			m.condition = conditions[0].Reason
		}
		return m
	}
	switch v := r.Verdict(); {
	case v == healer.Healed, v == healer.NotJudged && r.Helped(): // the text says which
		return next, []message{tell(reasonHealed, corev1.EventTypeNormal)}
	case v == healer.Healthy && len(d.conditions) > 0 && len(conditions) == 0:
		return next, []message{tell(reasonHealthy, corev1.EventTypeNormal)}
	case v == healer.Healthy:
		return next, nil
	}
	var all []message
	// The loop's check before a heal said that the heal follows. Of a volume that is left alone
	// the message below has what failed.
	failed := next.add(failuresOf(r)) && r.Left == (healer.LeftAlone{})
	if failed || conditions.reasons() != d.conditions.reasons() {
		all = append(all, tell(reasonAbnormal, corev1.EventTypeWarning))
	}
	refusals, text := refusalsOf(r)
	if next.add(refusals) {
		all = append(all, message{reason: reasonRefused, severity: corev1.EventTypeWarning, text: text})
	}
	if m, why := leftAlone(r, words); why != "" && next.add(map[string]string{why: why}) {
		all = append(all, m)
	}
	return next, all
}

// add returns whether any of the texts is another one than was said of the same.
func (d reported) add(texts map[string]string) (isNew bool) {
	for of, text := range texts {
		if before, known := d.said[of]; before != text && (known || len(d.said) < maxSaid) {
			d.said[of], isNew = text, true
		}
	}
	return isNew
}

// failuresOf returns the steps that failed, each with the type of its error, wherever: the errors'
// texts, and the containers, may differ from try to try.
func failuresOf(r healer.Report) map[string]string {
	failures := map[string]string{}
	for _, o := range r.Steps {
		if o.Err != nil {
			failures[o.Step+" "+string(healer.Classify(o.Err).Type)] = "failed"
		}
	}
	return failures
}

// digits differ from check to check, as times and process ids do, while the reason
// stays the same.
var digits = regexp.MustCompile(`[0-9]+`)

// refusalsOf returns the refusals by mount point, comparable between checks, and all
// of them as one text. Many mount points mostly share one reason.
func refusalsOf(r healer.Report) (byMountPoint map[string]string, text string) {
	if r.Checked || r.Verdict() != healer.Abnormal { // a check alone refuses every step
		return nil, ""
	}
	byMountPoint = map[string]string{}
	var all []string
	for _, refusal := range r.Refused {
		why := refusal.Step + ": " + refusal.Why
		if !slices.Contains(all, why) {
			all = append(all, why)
		}
		at, _ := mountPointName(r.After.Case, refusal.MountPoint)
		if why = digits.ReplaceAllString(why, "0") + "; "; !strings.Contains(byMountPoint[at], why) {
			byMountPoint[at] += why
		}
	}
	return byMountPoint, line("refused: " + strings.Join(all, "; "))
}

// triedAgain is what it takes after the last try (docs/loop.md).
const triedAgain = "The loop tries again when the volume's mounts change, when something else is wrong with it, " +
	"and after a restart of the server; a call of NodeHealer tries at once"

// maxDetailBytes bounds what the last step failed at: all of what is said of a missing
// permission with the mount point.
const maxDetailBytes = 640

// leftAlone returns the message about a volume that the loop leaves alone, and what makes
// it differ from others, whatever the numbers in it; it is empty where there is none to send.
func leftAlone(r healer.Report, words func(healer.Report) string) (m message, why string) {
	switch r.Left.Reason {
	case healer.PermissionMissing, healer.TerminalError:
		because := r.Left.Because
		detail := printable.Line(r.Left.Detail, maxDetailBytes)
		if detail != "" { // which right it is, or what a person can do
			because += ": " + detail
		}
		end := ". Not tried again: " + because + ". " + triedAgain
		said := printable.Line(words(r), maxTextBytes-len(end))
		return message{reason: string(r.Left.Reason), severity: corev1.EventTypeWarning, text: said + end}, r.Left.String() + digits.ReplaceAllString(detail, "0")
	}
	return message{}, ""
}

// line returns a text as the message of an event.
func line(text string) string { return printable.Line(text, maxTextBytes) }
