package providertest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/healer"
)

var (
	camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
	kebabCase = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	statuses  = []healer.Status{healer.Degraded, healer.Inaccessible, healer.DataLoss}
)

// judgeConditions reports how conditions break what messages, logs and the engine need.
func judgeConditions(c healer.Case, conditions []healer.Condition, broken report) {
	for _, cond := range conditions {
		bad := func(rule string) { broken("condition %+v: %s", cond, rule) }
		_, known := c.MountPoint(cond.MountPoint)
		switch {
		case !slices.Contains(statuses, cond.Status):
			bad("has no status")
		case !camelCase.MatchString(string(cond.Reason)):
			bad("its reason is not CamelCase")
		case cond.Acute && !known:
			bad("is acute at no mount point of the case")
		case cond.MountPoint != "" && !known:
			bad("is at a mount point that the case does not have")
		case sentence(cond.Message) != "":
			bad("its message " + sentence(cond.Message))
		case sentence(cond.Advice) != "":
			bad("its advice " + sentence(cond.Advice))
		case strings.Contains(cond.Advice, "delete") && strings.Contains(cond.Advice, "pod") && !healer.MayDeletePods(cond.Reason):
			bad("its advice may delete a pod, and stands beside advice to save files first")
		}
	}
}

// judgeSteps reports how steps break what the engine relies on.
func judgeSteps(c healer.Case, steps []healer.Step, broken report) {
	seen := map[string]bool{}
	for _, s := range steps {
		bad := func(rule string) { broken("step %q at %q: %s", s.Name, s.MountPoint.Path, rule) }
		key := s.Name + "\x00" + s.MountPoint.Path
		_, known := c.MountPoint(s.MountPoint.Path)
		_, proven := c.Superblocks[s.Source]
		switch {
		case !kebabCase.MatchString(s.Name):
			bad("its name is not kebab-case")
		case s.Note != "" && sentence(s.Note) != "":
			bad("its note " + sentence(s.Note))
		case seen[key]:
			bad("is offered twice, and a call takes it once")
		case !known:
			bad("is at no mount point of the case")
		case s.Cost < healer.Delegate || s.Cost > healer.Restage:
			bad("has no cost")
		case len(s.Heals) == 0:
			bad("heals nothing")
		case (s.Refused == "") != (s.Run != nil || s.RunBatch != nil) || s.Run != nil && s.RunBatch != nil:
			bad("must have exactly one of Refused, Run and RunBatch")
		case s.Refused != "" && sentence(s.Refused) != "":
			bad("its refusal " + sentence(s.Refused))
		case s.Refused == "" && !proven && !s.Sourceless():
			bad("brings a filesystem that the case does not know, so that its identity cannot be proven")
		}
		seen[key] = true
	}
}

// maxSentence is the longest text of a condition or step, in bytes.
const maxSentence = 512

// sentence returns why the text is not half a sentence that fits into a one-line
// message; "" if it is.
func sentence(s string) string {
	switch {
	case s == "":
		return "is empty"
	case strings.Contains(s, secret):
		return "quotes a secret"
	case len(s) > maxSentence:
		return fmt.Sprintf("is longer than %d bytes", maxSentence)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return "has control characters or is no UTF-8"
	case s != strings.TrimSpace(s):
		return "begins or ends with a space"
	case strings.HasSuffix(s, "."):
		return "ends with a full stop"
	default:
		return ""
	}
}

// judgeSick reports whether the reason that names a case is not found in it, and which acute
// conditions no step is for.
func (s suite) judgeSick(name string, build func() healer.Case, broken report) {
	f := s.finding(build, broken)
	if len(f.Conditions) == 0 {
		broken("a sick case has no condition")
	}
	named := func(c healer.Condition) bool { return string(c.Reason) == name }
	if camelCase.MatchString(name) && !slices.ContainsFunc(f.Conditions, named) {
		broken("%s is not found, but %+v", name, f.Conditions)
	}
	for _, cond := range f.Conditions {
		heals := func(step healer.Step) bool {
			return step.MountPoint.Path == cond.MountPoint && step.CanHeal(cond.Reason)
		}
		if cond.Acute && !slices.ContainsFunc(f.Steps, heals) {
			broken("%s at %s is acute, and no step there heals it or is refused with a reason", cond.Reason, cond.MountPoint)
		}
	}
}
