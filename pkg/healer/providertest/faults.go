package providertest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// judgeFault returns whether the reason that names a case is not found in it, and which
// acute conditions no step is for.
func (s suite) judgeFault(name string, build func() healer.Case) (broken []string) {
	f, _ := s.Examine(prepared(build))
	known := healer.AllReasons([]healer.Provider{s.Provider})
	named := func(c healer.Condition) bool { return string(c.Reason) == name }
	if slices.Contains(known, healer.Reason(name)) && !slices.ContainsFunc(f.Conditions, named) {
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

// judgeReasons returns which declared reasons no case shows, and which are found
// although they are not declared.
func (s suite) judgeReasons() (broken []string) {
	found := map[healer.Reason]bool{}
	for _, build := range s.Sick {
		f, _ := s.Examine(prepared(build))
		for _, cond := range f.Conditions {
			found[cond.Reason] = true
		}
	}
	known := healer.AllReasons([]healer.Provider{s.Provider})
	for _, reason := range slices.Sorted(maps.Keys(found)) {
		if !slices.Contains(known, reason) {
			broken = append(broken, fmt.Sprintf("%s is neither a reason of package healer nor declared (healer.Declarer)", reason))
		}
	}
	if d, declares := s.Provider.(healer.Declarer); declares {
		for _, reason := range d.Reasons() {
			if !found[reason] {
				broken = append(broken, fmt.Sprintf("no sick case shows %s", reason))
			}
		}
	}
	return broken
}
