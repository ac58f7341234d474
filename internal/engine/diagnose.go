package engine

import (
	"slices"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// diagnose asks every provider but those that could not collect. One provider's error
// hides no other's finding.
func (e *Engine) diagnose(c healer.Case, failures []healer.ProviderFailure) healer.Diagnosis {
	d := healer.Diagnosis{Case: c, Failures: failures}
	for _, p := range e.cfg.Providers {
		if slices.ContainsFunc(failures, func(f healer.ProviderFailure) bool { return f.Provider == p.Name() }) {
			continue
		}
		c.Found = slices.Clip(d.Conditions)
		f, err := p.Examine(c)
		if err != nil {
			d.Failures = append(d.Failures, healer.ProviderFailure{Provider: p.Name(), Err: err})
			continue
		}
		if !f.Mine {
			continue
		}
		d.Conditions = append(d.Conditions, f.Conditions...)
		for _, s := range f.Steps {
			s.Provider = p.Name()
			d.Steps = append(d.Steps, s)
		}
	}
	e.exclude(d)
	return d
}

// exclude refuses the steps beside which a provider's own must run alone.
func (e *Engine) exclude(d healer.Diagnosis) {
	for _, p := range e.cfg.Providers {
		x, excludes := p.(healer.Excluder)
		if !excludes {
			continue
		}
		why := x.Excludes(d.Case)
		for i, s := range d.Steps {
			if s.Provider != p.Name() && s.Refused == "" {
				d.Steps[i].Refused = why
			}
		}
	}
}
