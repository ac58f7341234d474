package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/privilege"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// run runs one step, at one mount point or at several at once, between two lines of the audit log
// for each mount point. Where the first line cannot be written nothing is changed.
func (e *Engine) run(ctx context.Context, c healer.Case, admitted []admission) []healer.Outcome {
	if len(admitted) == 0 {
		return nil
	}
	outcomes, entries := make([]healer.Outcome, len(admitted)), make([]healer.AuditEntry, len(admitted))
	for i, a := range admitted {
		outcomes[i] = healer.Outcome{
			Step: a.step.Name, Provider: a.step.Provider, MountPoint: a.step.MountPoint.Path, Cost: a.step.Cost, Note: a.step.Note,
			Err: errPanic, // until it returns
		}
		entries[i] = healer.AuditEntry{Driver: c.Driver, VolumeID: c.Volume.ID, Step: a.step.Name, MountPoint: a.step.MountPoint.String(), Source: a.step.Source.String(), Caller: healer.CallerOf(ctx)}
	}
	if err := e.cfg.Audit.Before(entries...); err != nil {
		leaveAll(admitted, err)
		for i := range outcomes {
			outcomes[i].Err = fmt.Errorf("%w: nothing done, because the audit log cannot be written: %w", healer.ErrRefused, err)
		}
		return outcomes
	}
	defer func() {
		for i, o := range outcomes {
			admitted[i].permit.Leave(o.Err)
			if entries[i].Outcome = "done"; o.Err != nil {
				class := healer.Classify(o.Err)
				entries[i].Outcome = class.String() + ": " + o.Err.Error()
				entries[i].Tier, entries[i].ErrorType = class.Tier, class.Type
			}
		}
		if err := e.cfg.Audit.After(entries...); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot write the audit log after an operation", "step", outcomes[0].Step)
		}
	}()
	for i, err := range e.act(ctx, c, admitted) {
		outcomes[i].Err = ExplainPermission(outcomes[i].Step, outcomes[i].MountPoint, err, privilege.Own)
	}
	return outcomes
}

// errPanic is the error of a step that did not return.
var errPanic = errors.New("the step ended in a panic")

// act runs the steps. What they replace is put into the record before: after a kill in the middle
// nothing else tells the next call how the mounts were, and which superblock was the volume's.
func (e *Engine) act(ctx context.Context, c healer.Case, admitted []admission) (errs []error) {
	e.reload(&c)
	var steps []healer.Step
	var revalidate []func(context.Context) error
	for _, a := range admitted {
		steps, revalidate = append(steps, a.step), append(revalidate, a.permit.Revalidate)
		if _, err := e.savePrevious(ctx, &c, a.step); err != nil && a.step.Cost == healer.Restage {
			return slices.Repeat([]error{fmt.Errorf("%w: nothing done, because the record cannot be written: %w", healer.ErrRefused, err)}, len(admitted))
		}
	}
	errs = make([]error, len(steps))
	for i := range errs {
		errs[i] = errPanic // until it returns
	}
	defer func() {
		for i, s := range steps {
			e.saveAfter(ctx, c, s, errs[i])
		}
	}()
	if runBatch := steps[0].RunBatch; runBatch != nil {
		return runBatch(ctx, steps, revalidate)
	}
	err := steps[0].Run(healer.WithCallRecorder(ctx, e.recordCall(c, steps[0])), revalidate[0])
	mayPanic(err)
	return []error{err}
}
