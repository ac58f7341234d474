package engine

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// heal observes, diagnoses and mends until the volume is healthy or no step is left. It
// ends: every step runs at most once per mount point.
func (e *Engine) heal(ctx context.Context, v healer.Volume, lock *volumeLock) (healer.Report, error) {
	report := healer.Report{Volume: v, Checked: lock.checks}
	if err := e.cfg.Gate.Inspect(ctx, v); err != nil {
		return report, healer.RefusedBy(healer.RuleMode, healer.Failed("the volume was not checked", err))
	}
	m := &mending{tried: map[string]bool{}, refused: map[string]healer.Refusal{}}
	for first := true; ; first = false {
		d, err := e.examine(ctx, v, lock)
		if err != nil {
			return report, err
		}
		report.Driver, report.After = d.Case.Driver, d
		if first {
			report.Before = d
		}
		if err := e.save(ctx, d, lock); err != nil {
			return report, err
		}
		if d.Healthy() {
			return report, nil
		}
		ran, more, err := e.mend(ctx, d, lock, m)
		if err != nil {
			return report, err
		}
		report.Steps = append(report.Steps, ran...)
		if !more {
			break
		}
	}
	for _, o := range report.Steps {
		if healer.KindOf(o.Err) == healer.KindUnauthenticated {
			// Other secrets may heal it.
			return report, &healer.Error{Kind: healer.KindUnauthenticated, Step: o.Step, Text: "step " + o.Step, Err: o.Err}
		}
	}
	report.Refused = m.refusals(report.Steps)
	report.After.Conditions = append(report.After.Conditions, notEmpty(report.Steps)...)
	report.After.Conditions = append(report.After.Conditions, stagedWithoutPod(report.Steps)...)
	if !lock.checks { // it costs a walk through all processes
		e.reportHeld(ctx, &report)
	}
	return report, nil
}

// examine observes and diagnoses. What a check saw of a volume that was being healed
// meanwhile counts for nothing.
func (e *Engine) examine(ctx context.Context, v healer.Volume, lock *volumeLock) (healer.Diagnosis, error) {
	c, err := e.observe(ctx, v, lock)
	if preempted := lock.current(); preempted != nil {
		return healer.Diagnosis{}, preempted
	}
	if err != nil {
		return healer.Diagnosis{}, err
	}
	failures := e.collect(ctx, &c)
	if preempted := lock.current(); preempted != nil {
		return healer.Diagnosis{}, preempted
	}
	return e.diagnose(c, failures), nil
}

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

// save keeps on disk what the next calls need.
func (e *Engine) save(ctx context.Context, d healer.Diagnosis, lock *volumeLock) error {
	unusable := func(c healer.Condition) bool { return c.Disables() || c.Ambiguous }
	if len(d.Failures) == 0 && !slices.ContainsFunc(d.Conditions, unusable) {
		if err := lock.alone(func() { e.saveRecord(ctx, d) }); err != nil {
			return err
		}
	}
	if staged, found := d.Case.Staged(); found && staged.Mounted() && d.Case.Record != nil && d.Case.Record.Restaging {
		if err := lock.alone(func() { e.saveRestaged(ctx, d.Case) }); err != nil {
			return err
		}
	}
	if !d.Healthy() && len(d.Case.OnOldDevice) > 0 {
		return lock.alone(func() { e.saveOldDevices(ctx, d.Case) })
	}
	return nil
}

// notEmpty returns a condition for each mount point at which a step found files in the
// way: only a step looks for them, right before it would hide them.
func notEmpty(steps []healer.Outcome) (found []healer.Condition) {
	for _, o := range steps {
		if errors.Is(o.Err, healer.ErrRefused) && errors.Is(o.Err, syscall.ENOTEMPTY) {
			found = append(found, healer.Condition{
				Status: healer.Inaccessible, Reason: healer.TargetNotEmpty, MountPoint: o.MountPoint,
				Message: "files lie in the directory itself, on the node's disk, and a mount would hide them",
				Advice:  "see who wrote them while nothing was mounted there; copy them into the volume if they matter, and remove them",
			})
		}
	}
	return found
}

// stagedWithoutPod returns a condition for each mount point at which the driver staged the
// volume while the last pod went. To unstage it is kubelet's business.
func stagedWithoutPod(steps []healer.Outcome) (found []healer.Condition) {
	for _, o := range steps {
		if errors.Is(o.Err, healer.ErrNotWanted) {
			found = append(found, healer.Condition{
				Status: healer.Degraded, Reason: healer.StagedWithoutPod, MountPoint: o.MountPoint,
				Message: "the driver staged the volume anew while the last pod that wanted it went",
				Advice:  "if no pod of this node uses the volume later, unmount it there",
			})
		}
	}
	return found
}
