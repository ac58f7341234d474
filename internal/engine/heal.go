// Package engine takes one volume from a request to a proven answer.
//
// Engine.Heal locks the volume (locks.go); Engine.heal is the whole call on one screen, and names
// the file of each of its parts. What the engine needs of the node is the interface Node
// (engine.go); it touches no mount and no device itself.
package engine

import (
	"cmp"
	"context"
	"runtime/debug"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Heal checks a volume, heals it as far as it may, and reports. It goes on when ctx
// ends, and until it returns the volume is busy for others.
func (e *Engine) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	return e.call(ctx, v, false)
}

// Check is Heal without a step and without a write. Several checks of a volume may run
// at once; while a heal runs, or begins, the volume is busy for them.
func (e *Engine) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	return e.call(ctx, v, true)
}

func (e *Engine) call(ctx context.Context, v healer.Volume, checks bool) (healer.Report, error) {
	if !e.begin() {
		return healer.Report{}, healer.ErrShuttingDown
	}
	defer e.running.Done()
	keys := []key{{path: e.cfg.Node.RealPath(v.Path)}}
	if v.StagingPath != "" {
		keys = append(keys, key{path: e.cfg.Node.RealPath(v.StagingPath)})
	}
	lock, err := e.locks.lock(checks, keys...)
	if err != nil {
		return healer.Report{}, err
	}
	// The caller may leave; what was begun is finished all the same.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.HealTimeout)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)() //nolint:contextcheck // the engine outlives every caller
	report, err := e.heal(work, v, lock)
	lock.unlock(append(stuckBehind(err), stuckIn(report.Steps)...))
	if ctx.Err() != nil {
		klog.FromContext(work).Info("The work ended after its caller had left",
			"verdict", report.Verdict(), "steps", len(report.Steps), "failed", err != nil)
	}
	return report, err
}

// failed makes of a panic the error of a call: it would otherwise end the server, and with it the
// work on all other volumes. What the call's steps left behind stays in its report.
func failed(ctx context.Context, v healer.Volume, err *error) {
	if p := recover(); p != nil {
		klog.FromContext(ctx).Error(nil, "Panic while working on a volume", "panic", panicText(v, p), "stack", string(debug.Stack()))
		*err = healer.Failed("internal error, see the log", nil)
	}
}

// heal is one call, on one screen. It ends because every step runs at most once per mount point.
func (e *Engine) heal(ctx context.Context, v healer.Volume, lock *volumeLock) (report healer.Report, err error) {
	defer failed(ctx, v, &err)
	report = healer.Report{Volume: v, Checked: lock.checks}
	if v.ReadersOnly, err = e.cfg.Gate.Inspect(ctx, v); err != nil {
		return report, healer.RefusedBy(healer.RuleMode, healer.Failed("the volume was not checked", err))
	}
	t := tries{tried: map[string]bool{}, refused: map[string]healer.Refusal{}}
	for first := true; ; first = false {
		c, failures, err := e.examine(ctx, v, lock) // observe.go, collect.go: what is there
		if err != nil {
			return report, err
		}
		failEnded(report.Steps, c)        // report.go
		d := e.diagnose(ctx, c, failures) // below: what is wrong, and which steps there are
		if report.Driver, report.After = c.Driver, d; first {
			report.Before = d
		}
		if err := e.save(ctx, d, lock); err != nil { // record_save.go: what the next calls need
			return report, err
		}
		if !d.Sick() {
			return report, nil
		}
		steps := t.next(d)                          // next.go: the least invasive step that may help
		onlySays := lock.checks && !e.cfg.CheckOnly // the diagnosis has what a heal would try
		if len(steps) == 0 || onlySays || len(stuckIn(report.Steps)) > 0 {
			return e.report(ctx, report, t, lock.checks) // report.go
		}
		admitted, err := e.admitAll(ctx, d, steps, lock, t) // admit.go: identity, the gate
		if err != nil {
			return report, err
		}
		report.Steps = append(report.Steps, e.run(ctx, c, admitted)...) // run.go: the audit log, the step
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

// diagnose asks every provider but those that could not collect. One provider's error
// hides no other's finding.
func (e *Engine) diagnose(ctx context.Context, c healer.Case, failures []healer.ProviderFailure) healer.Diagnosis {
	d := healer.Diagnosis{Case: c, Failures: failures}
	panics := "" // why no step may run
	for _, p := range e.cfg.Providers {
		if slices.ContainsFunc(failures, func(f healer.ProviderFailure) bool { return f.Provider == p.Name() }) {
			continue
		}
		c.Found = slices.Clip(d.Conditions)
		f, err := examineBy(ctx, p, c, &panics)
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
	for _, p := range e.cfg.Providers { // beside whose step no other may run
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
	for i, s := range d.Steps {
		d.Steps[i].Refused = cmp.Or(s.Refused, panics)
	}
	return d
}

func examineBy(ctx context.Context, p healer.Provider, c healer.Case, panics *string) (f healer.Finding, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			*panics = "provider " + p.Name() + " panicked, and what it would have found may forbid any step"
			err = panicked(ctx, p, c.Volume, fault)
		}
	}()
	f, err = p.Examine(c)
	mayPanic(err)
	return f, err
}
