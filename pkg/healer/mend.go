package healer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/host"
)

// heal observes, diagnoses and mends until the volume is healthy or nothing is
// left to offer.
func (e *Engine) heal(ctx context.Context, v Volume, t *ticket) (Report, error) {
	report := Report{Volume: v, Checked: t.looks}
	if err := e.cfg.Gate.Look(ctx, v); err != nil {
		return report, Failed("the volume was not looked at", err)
	}
	tried := map[string]bool{}
	// halted: a stuck worker may still act, and nobody acts beside it.
	halted := false
	refused := map[string]Refusal{}
	// It ends: every step runs at most once per place.
	for first := true; ; first = false {
		c, err := e.observe(ctx, v, t)
		if overtaken := t.current(); overtaken != nil {
			return report, overtaken // whatever a look saw or failed at meanwhile
		}
		if err != nil {
			return report, err
		}
		d := e.diagnose(ctx, c)
		report.Driver, report.After = c.Driver, d
		if first {
			report.Before = d
		}
		if d.Healthy() {
			return report, t.alone(func() { e.remember(ctx, c) })
		}
		noteRefused(d, refused)
		step, found := pick(d, tried)
		if !found || halted {
			break
		}
		tried[step.key()] = true
		permit, err := e.admit(ctx, d, step, t)
		if KindOf(err) == KindBusy {
			return report, err
		}
		if err != nil {
			refused[step.key()] = Refusal{Step: step.Name, Place: step.Place.Path, Why: err.Error()}
			continue
		}
		o := e.run(ctx, c, step, permit)
		report.Steps = append(report.Steps, o)
		halted = halted || len(stillRunning(o.Err)) > 0
	}
	report.Refused = inOrder(refused, report.Steps)
	if !t.looks { // it costs a walk through all processes
		e.whoHolds(ctx, &report)
	}
	return report, nil
}

func (s Step) key() string { return s.Name + "\x00" + s.Place.Path }

// pick takes the least invasive step that heals an acute condition at its
// place, is not refused and was not tried there in this call.
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
		return c.Acute && c.Place == s.Place.Path && s.CanHeal(c.Reason)
	})
}

var (
	errCheckOnly    = errors.New("the server only checks (--mode=check)")
	errAskedToCheck = errors.New("the caller asked for a check, not to heal")
)

// admit proves identity and asks the gate. Its error says why the step must not
// run; it is a busy one when another volume on the same filesystem is healed.
func (e *Engine) admit(ctx context.Context, d Diagnosis, s Step, t *ticket) (Permit, error) {
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
// may have given its place to another one.
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

// run runs one step between two lines of the audit log. Without the first line
// nothing is changed.
func (e *Engine) run(ctx context.Context, c Case, s Step, permit Permit) (o Outcome) {
	start := time.Now()
	o = Outcome{Step: s.Name, Place: s.Place.Path}
	defer func() { o.Elapsed = time.Since(start) }()
	entry := AuditEntry{Driver: c.Driver, VolumeID: c.Volume.ID, Step: s.Name, Place: s.Place.Path, Source: s.Source.String()}
	if err := e.cfg.Audit.Before(entry); err != nil {
		permit.Leave(err)
		o.Err = fmt.Errorf("nothing done, because the audit log cannot be written: %w", err)
		return o
	}
	o.Err = errors.New("the step ended in a panic") // until it returns
	defer func() {
		permit.Leave(o.Err)
		entry.Outcome = "done"
		if o.Err != nil {
			entry.Outcome = Classify(s.Name, "", o.Err).String() + ": " + o.Err.Error()
		}
		if err := e.cfg.Audit.After(entry); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot write the audit log after an operation", "step", s.Name)
		}
	}()
	o.Err = explainStep(s, s.Run(ctx, permit.Still))
	return o
}

// diagnose asks every provider. One provider's error hides no other's finding.
func (e *Engine) diagnose(ctx context.Context, c Case) Diagnosis {
	d := Diagnosis{Case: c}
	for _, p := range e.cfg.Providers {
		f, err := p.Examine(ctx, c)
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
			refused[s.key()] = Refusal{Step: s.Name, Place: s.Place.Path, Why: s.Refused}
		}
	}
}

// inOrder sorts refusals and leaves out steps that ran after all.
func inOrder(refused map[string]Refusal, ran []Outcome) []Refusal {
	var list []Refusal
	for _, r := range refused {
		if !slices.ContainsFunc(ran, func(o Outcome) bool { return o.Step == r.Step && o.Place == r.Place }) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		if a.Place != b.Place {
			return cmp.Compare(a.Place, b.Place)
		}
		return cmp.Compare(a.Step, b.Step)
	})
	return list
}
