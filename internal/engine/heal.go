package engine

import (
	"context"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// heal is one call, on one screen. It ends because every step runs at most once per mount point.
func (e *Engine) heal(ctx context.Context, v healer.Volume, lock *volumeLock) (healer.Report, error) {
	report := healer.Report{Volume: v, Checked: lock.checks}
	if err := e.cfg.Gate.Inspect(ctx, v); err != nil {
		return report, healer.RefusedBy(healer.RuleMode, healer.Failed("the volume was not checked", err))
	}
	t := newTries()
	for first := true; ; first = false {
		c, failures, err := e.examine(ctx, v, lock) // observe.go: what is there; diagnose.go: what providers ask
		if err != nil {
			return report, err
		}
		failEnded(report.Steps, c)   // report.go
		d := e.diagnose(c, failures) // diagnose.go: what is wrong, and which steps there are
		if report.Driver, report.After = c.Driver, d; first {
			report.Before = d
		}
		if err := e.save(ctx, d, lock); err != nil { // record_save.go: what the next calls need
			return report, err
		}
		if !d.Sick() {
			return report, nil
		}
		steps := t.next(d) // next.go: the least invasive step that may help
		onlySays := lock.checks && !e.cfg.CheckOnly
		if len(steps) == 0 || onlySays { // the diagnosis has what a heal would try
			return e.report(ctx, report, t, lock.checks) // report.go
		}
		admitted, err := e.admitAll(ctx, d, steps, lock, t) // admit.go: identity, the gate
		if err != nil {
			return report, err
		}
		outcomes := e.run(ctx, c, admitted) // run.go: the audit log, the step
		report.Steps = append(report.Steps, outcomes...)
		t.done(outcomes)
	}
}

// examine observes a volume and has the providers collect. A check during which a heal of the
// volume began fails: it may have seen a mount point in the middle of a step.
func (e *Engine) examine(ctx context.Context, v healer.Volume, lock *volumeLock) (healer.Case, []healer.ProviderFailure, error) {
	c, err := e.observe(ctx, v, lock)
	if preempted := lock.current(); preempted != nil {
		return healer.Case{}, nil, preempted
	}
	if err != nil {
		return healer.Case{}, nil, err
	}
	failures := e.collect(ctx, &c)
	return c, failures, lock.current()
}
