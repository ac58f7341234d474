package healer

import (
	"context"
)

// heal observes, diagnoses and mends until the volume is healthy or no step is left. It
// ends: every step runs at most once per mount point.
func (e *Engine) heal(ctx context.Context, v Volume, lock *volumeLock) (Report, error) {
	report := Report{Volume: v, Checked: lock.checks}
	if err := e.cfg.Gate.Inspect(ctx, v); err != nil {
		return report, Failed("the volume was not looked at", err)
	}
	m := newMending()
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
			e.reportRestarts(ctx, &report)
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
	report.Refused = m.refusals(report.Steps)
	report.After.Conditions = append(report.After.Conditions, notEmpty(report.Steps)...)
	e.reportRestarts(ctx, &report)
	if !lock.checks { // it costs a walk through all processes
		e.reportHolders(ctx, &report)
	}
	return report, nil
}

// examine observes and diagnoses. What a check saw of a volume that was being healed
// meanwhile counts for nothing.
func (e *Engine) examine(ctx context.Context, v Volume, lock *volumeLock) (Diagnosis, error) {
	c, err := e.observe(ctx, v, lock)
	if preempted := lock.current(); preempted != nil {
		return Diagnosis{}, preempted
	}
	if err != nil {
		return Diagnosis{}, err
	}
	return e.diagnose(c), nil
}

// save keeps on disk what the next calls need.
func (e *Engine) save(ctx context.Context, d Diagnosis, lock *volumeLock) error {
	if d.recordable() {
		if err := lock.alone(func() { e.saveRecord(ctx, d) }); err != nil {
			return err
		}
	}
	if !d.Healthy() && len(d.Case.OnOldDevice) > 0 {
		return lock.alone(func() { e.saveOldDevices(ctx, d.Case) })
	}
	return nil
}
