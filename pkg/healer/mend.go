package healer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// heal observes, diagnoses and mends until the volume is healthy or nothing is
// left to offer.
func (e *Engine) heal(ctx context.Context, v Volume, t *volumeLock) (Report, error) {
	report := Report{Volume: v, Checked: t.looks}
	if err := e.cfg.Gate.Inspect(ctx, v); err != nil {
		return report, Failed("the volume was not looked at", err)
	}
	tried := map[string]bool{}
	// halted: a stuck worker may still act, and nobody acts beside it.
	halted := false
	refused := map[string]Refusal{}
	// It ends: every step runs at most once per mount point.
	for first := true; ; first = false {
		c, err := e.observe(ctx, v, t)
		if preempted := t.current(); preempted != nil {
			return report, preempted // whatever a look saw or failed at meanwhile
		}
		if err != nil {
			return report, err
		}
		d := e.diagnose(c)
		report.Driver, report.After = c.Driver, d
		if first {
			report.Before = d
		}
		if d.recordable() {
			if err := t.alone(func() { e.remember(ctx, d) }); err != nil {
				return report, err
			}
		}
		if d.Healthy() {
			e.whoNeedsRestart(ctx, &report)
			return report, nil
		}
		if len(c.OnOldDevice) > 0 {
			if err := t.alone(func() { e.noteOldDevices(ctx, c) }); err != nil {
				return report, err
			}
		}
		noteRefused(d, refused)
		step, found := pick(d, tried)
		if !found || halted {
			break
		}
		admitted, err := e.admitAll(ctx, d, d.with(step, tried), t, func(s Step, err error) {
			tried[s.key()] = true
			if err != nil {
				refused[s.key()] = Refusal{Step: s.Name, MountPoint: s.MountPoint.Path, Why: err.Error()}
			}
		})
		if err != nil {
			return report, err
		}
		for _, o := range e.run(ctx, c, admitted) {
			report.Steps = append(report.Steps, o)
			halted = halted || len(stillRunning(o.Err)) > 0
		}
	}
	report.Refused = inOrder(refused, report.Steps)
	report.After.Conditions = append(report.After.Conditions, notEmpty(report.Steps)...)
	e.whoNeedsRestart(ctx, &report)
	if !t.looks { // it costs a walk through all processes
		e.whoHolds(ctx, &report)
	}
	return report, nil
}

// notEmpty gives a condition for each mount point at which a step found files in the way:
// only a step looks for them, right before it would hide them.
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

func (s Step) key() string { return s.Name + "\x00" + s.MountPoint.Path }

// pick takes the least invasive step that heals an acute condition at its
// mount point, is not refused and was not tried there in this call.
func pick(d Diagnosis, tried map[string]bool) (best Step, found bool) {
	for _, s := range d.Steps {
		if s.Refused != "" || tried[s.key()] || !d.needs(s) {
			continue
		}
		if !found || s.Cost < best.Cost {
			best, found = s, true
		}
	}
	return best, found
}

func (d Diagnosis) needs(s Step) bool {
	return slices.ContainsFunc(d.Conditions, func(c Condition) bool {
		return c.Acute && c.MountPoint == s.MountPoint.Path && s.CanHeal(c.Reason)
	})
}

var (
	errCheckOnly    = errors.New("the server only checks (--mode=check)")
	errAskedToCheck = errors.New("the call only checks: the caller did not ask to heal, or may not")
)

// admit proves identity and asks the gate. Its error says why the step must not
// run; it is a busy one when another volume on the same filesystem is healed.
func (e *Engine) admit(ctx context.Context, d Diagnosis, s Step, t *volumeLock) (Permit, error) {
	switch {
	case e.cfg.CheckOnly:
		return nil, errCheckOnly
	case t.looks:
		return nil, errAskedToCheck
	case e.isClosing():
		return nil, errors.New("the server is shutting down")
	}
	if err := t.add(superblockKey(s.Source.String())); err != nil {
		return nil, err
	}
	if err := proveIdentity(e.identified(d.Case, s.Source), s.Source); err != nil {
		return nil, fmt.Errorf("identity not proven: %w", err)
	}
	return e.cfg.Gate.Enter(ctx, d, s)
}

// identified gives the case with the identity of a device read anew: a target
// may have given its mount point to another one.
func (e *Engine) identified(c Case, dev host.Dev) Case {
	sb, known := c.Superblocks[dev]
	if !known || sb.Device == nil || sb.Device.Dev.Zero() {
		return c
	}
	device := *sb.Device
	device.Identify(e.cfg.Node.Identity(device.Dev))
	sb.Device = &device
	c.Superblocks = maps.Clone(c.Superblocks)
	c.Superblocks[dev] = sb
	return c
}

// with gives a step and, if it can run at several mount points at once, all others of
// its name that are needed and may run.
func (d Diagnosis) with(s Step, tried map[string]bool) []Step {
	all := []Step{s}
	if s.Together == nil {
		return all
	}
	for _, o := range d.Steps {
		if o.Name == s.Name && o.key() != s.key() && o.Refused == "" && !tried[o.key()] && d.needs(o) {
			all = append(all, o)
		}
	}
	return all
}

// admitAtOnce bounds the steps about which the gate is asked side by side: those
// who ask the cluster the same share one answer.
const admitAtOnce = 16

// admitAll asks for leave for each step, and tells what became of each. Its error
// is a busy one.
func (e *Engine) admitAll(ctx context.Context, d Diagnosis, steps []Step, t *volumeLock, tell func(Step, error)) ([]admission, error) {
	permits, errs := make([]Permit, len(steps)), make([]error, len(steps))
	room := make(chan struct{}, admitAtOnce)
	var wg sync.WaitGroup
	for i, s := range steps {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			permits[i], errs[i] = e.admit(ctx, d, s, t)
		})
	}
	wg.Wait()
	var admitted []admission
	var busy error
	for i, s := range steps {
		tell(s, errs[i])
		switch {
		case KindOf(errs[i]) == KindBusy:
			busy = errs[i]
		case errs[i] == nil:
			admitted = append(admitted, admission{s, permits[i]})
		}
	}
	if busy != nil {
		leaveAll(admitted, busy)
		return nil, busy
	}
	return admitted, nil
}

// admission is a step that may run, with the leave to do so.
type admission struct {
	step   Step
	permit Permit
}

func leaveAll(admitted []admission, err error) {
	for _, a := range admitted {
		a.permit.Leave(err)
	}
}

// run runs one step, at one place or at several at once, between two lines of the
// audit log for each. Where the first cannot be written nothing is changed.
func (e *Engine) run(ctx context.Context, c Case, admitted []admission) []Outcome {
	if len(admitted) == 0 {
		return nil
	}
	start := time.Now()
	outcomes, entries := make([]Outcome, len(admitted)), make([]AuditEntry, len(admitted))
	for i, a := range admitted {
		outcomes[i] = Outcome{Step: a.step.Name, MountPoint: a.step.MountPoint.Path, Note: a.step.Note, Err: errors.New("the step ended in a panic")} // until it returns
		entries[i] = AuditEntry{Driver: c.Driver, VolumeID: c.Volume.ID, Step: a.step.Name, MountPoint: a.step.MountPoint.String(), Source: a.step.Source.String(), Caller: CallerOf(ctx)}
	}
	if err := e.cfg.Audit.Before(entries...); err != nil {
		leaveAll(admitted, err)
		for i := range outcomes {
			outcomes[i].Err = fmt.Errorf("nothing done, because the audit log cannot be written: %w", err)
		}
		return outcomes
	}
	defer func() {
		for i, o := range outcomes {
			admitted[i].permit.Leave(o.Err)
			outcomes[i].Elapsed = time.Since(start)
			if entries[i].Outcome = "done"; o.Err != nil {
				entries[i].Outcome = Classify(o.Step, "", o.Err).String() + ": " + o.Err.Error()
			}
		}
		if err := e.cfg.Audit.After(entries...); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot write the audit log after an operation", "step", outcomes[0].Step)
		}
	}()
	for i, err := range e.act(ctx, c, admitted) {
		outcomes[i].Err = explainStep(admitted[i].step, err)
	}
	return outcomes
}

func (e *Engine) act(ctx context.Context, c Case, admitted []admission) []error {
	var steps []Step
	var revalidate []func(context.Context) error
	for _, a := range admitted {
		steps, revalidate = append(steps, a.step), append(revalidate, a.permit.Revalidate)
		e.notePrevious(ctx, c, a.step)
	}
	// Again, for the time: what was there until now may have what was replaced.
	defer func() {
		for _, s := range steps {
			if s.MountPoint.InContainer == nil {
				e.notePrevious(ctx, c, s)
			}
		}
	}()
	if together := steps[0].Together; together != nil {
		return together(ctx, steps, revalidate)
	}
	return []error{steps[0].Run(ctx, revalidate[0])}
}

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

func noteRefused(d Diagnosis, refused map[string]Refusal) {
	for _, s := range d.Steps {
		if s.Refused != "" && d.needs(s) {
			refused[s.key()] = Refusal{Step: s.Name, MountPoint: s.MountPoint.Path, Why: s.Refused}
		}
	}
}

// inOrder sorts refusals and leaves out steps that ran after all.
func inOrder(refused map[string]Refusal, ran []Outcome) []Refusal {
	var list []Refusal
	for _, r := range refused {
		if !slices.ContainsFunc(ran, func(o Outcome) bool { return o.Step == r.Step && o.MountPoint == r.MountPoint }) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		if a.MountPoint != b.MountPoint {
			return cmp.Compare(a.MountPoint, b.MountPoint)
		}
		return cmp.Compare(a.Step, b.Step)
	})
	return list
}
