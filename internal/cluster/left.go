package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

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
		return message{string(r.Left.Reason), corev1.EventTypeWarning, said + end}, r.Left.String() + digits.ReplaceAllString(detail, "0")
	case healer.DryRun:
		why = line("dry run: would try " + strings.Join(offersOf(r), ", ") + ", unless the policy refuses it. Nothing was changed")
		return message{reasonDryRun, corev1.EventTypeNormal, why}, why
	}
	return message{}, ""
}

// offersOf lists the steps that may be tried, each once, by names that are the same in the
// next check.
func offersOf(r healer.Report) (all []string) {
	names, _ := mountPointNames(r.After.Case)
	for _, s := range r.After.Offers() {
		at := "at " + healer.QuoteName(s.MountPoint.Path)
		if name := nameOf(names, s.MountPoint.Path); name != s.MountPoint.Path {
			at = name
		}
		all = append(all, s.Name+" "+at)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
