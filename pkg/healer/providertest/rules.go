package providertest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/csi-addons/node-healer/pkg/healer"
)

var (
	camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
	kebabCase = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	statuses  = []healer.Status{healer.Degraded, healer.Inaccessible, healer.DataLoss}
)

// judgeConditions returns how conditions break what messages, logs and the engine need.
func judgeConditions(c healer.Case, conditions []healer.Condition) (broken []string) {
	for _, cond := range conditions {
		bad := func(rule string) { broken = append(broken, fmt.Sprintf("condition %+v: %s", cond, rule)) }
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
		case !sentence(cond.Message):
			bad("its message is not half a line of text")
		case !sentence(cond.Advice):
			bad("its advice is not half a line of text")
		}
	}
	return broken
}

// judgeSteps returns how steps break what the engine relies on.
func judgeSteps(c healer.Case, steps []healer.Step) (broken []string) {
	seen := map[string]bool{}
	for _, s := range steps {
		bad := func(rule string) {
			broken = append(broken, fmt.Sprintf("step %q at %q: %s", s.Name, s.MountPoint.Path, rule))
		}
		key := s.Name + "\x00" + s.MountPoint.Path
		_, known := c.MountPoint(s.MountPoint.Path)
		_, proven := c.Superblocks[s.Source]
		switch {
		case !kebabCase.MatchString(s.Name):
			bad("its name is not kebab-case")
		case seen[key]:
			bad("is offered twice, and a call takes it once")
		case !known:
			bad("is at no mount point of the case")
		case s.Cost < healer.Rebind || s.Cost > healer.Restage:
			bad("has no cost")
		case len(s.Heals) == 0:
			bad("heals nothing")
		case (s.Refused == "") != (s.Run != nil || s.RunBatch != nil) || s.Run != nil && s.RunBatch != nil:
			bad("is neither refused nor to be run, or both")
		case s.Refused != "" && !sentence(s.Refused):
			bad("its refusal is not half a line of text")
		case s.Refused == "" && !proven:
			bad("brings a filesystem that the case does not know, so that its identity cannot be proven")
		}
		seen[key] = true
	}
	return broken
}

// sentence is true for half a sentence that fits into a one-line message.
func sentence(s string) bool {
	return s != "" && len(s) <= 512 && s == strings.TrimSpace(s) && !strings.HasSuffix(s, ".") &&
		!strings.Contains(s, secret) && !strings.ContainsFunc(s, unicode.IsControl)
}
