package providertest

import (
	"fmt"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// judgeFault returns whether the reason that names a case is not found in it, and which
// acute conditions no step is for.
func (s suite) judgeFault(name string, build func() healer.Case) (broken []string) {
	f, _ := s.Examine(prepared(build))
	named := func(c healer.Condition) bool { return string(c.Reason) == name }
	if camelCase.MatchString(name) && !slices.ContainsFunc(f.Conditions, named) {
		broken = append(broken, fmt.Sprintf("%s is not found, but %+v", name, f.Conditions))
	}
	for _, cond := range f.Conditions {
		heals := func(step healer.Step) bool {
			return step.MountPoint.Path == cond.MountPoint && step.CanHeal(cond.Reason)
		}
		if cond.Acute && !slices.ContainsFunc(f.Steps, heals) {
			broken = append(broken, fmt.Sprintf("%s at %s is acute, and no step there heals it or is refused with a reason", cond.Reason, cond.MountPoint))
		}
	}
	return broken
}
