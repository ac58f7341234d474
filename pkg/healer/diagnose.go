package healer

import (
	"errors"
	"slices"
	"syscall"
)

// diagnose asks every provider. One provider's error hides no other's finding.
func (e *Engine) diagnose(c Case) Diagnosis {
	d := Diagnosis{Case: c}
	for _, p := range e.cfg.Providers {
		c.Found = slices.Clip(d.Conditions)
		f, err := p.Examine(c)
		if err != nil {
			d.Failures = append(d.Failures, ProviderFailure{Provider: p.Name(), Err: err})
			continue
		}
		if !f.Mine {
			continue
		}
		d.Conditions = append(d.Conditions, f.Conditions...)
		d.Steps = append(d.Steps, f.Steps...)
	}
	return d
}

// notEmpty returns a condition for each mount point at which a step found files in the
// way: only a step looks for them, right before it would hide them.
func notEmpty(steps []Outcome) (found []Condition) {
	for _, o := range steps {
		if errors.Is(o.Err, ErrRefused) && errors.Is(o.Err, syscall.ENOTEMPTY) {
			found = append(found, Condition{
				Status: Inaccessible, Reason: TargetNotEmpty, MountPoint: o.MountPoint,
				Message: "files lie in the directory itself, on the node's disk, and a mount would hide them",
				Advice:  "see who wrote them while nothing was mounted there; copy them into the volume if they matter, and remove them",
			})
		}
	}
	return found
}
