package driver

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// waitParts is for how many step timeouts a driver counts as at work after the first call that
// it did not answer: a minute, as shipped.
const waitParts = 2

// atWork reports whether the driver may still be at work on a row of calls of this case.
func (p *Provider) atWork(c healer.Case, row healer.PendingCall) bool {
	return row.AtWork(c.Began, waitParts*p.cfg.StepTimeout)
}

// pendingCall returns the calls on which the process that listens now may be at work.
func pendingCall(c healer.Case, cost healer.Cost) healer.PendingCall {
	e, _ := c.Evidence[name].(Evidence)
	listens, row := e.StagePID, c.Pending(cost)
	if cost == healer.Delegate {
		listens = e.HealPID
	}
	if listens != 0 && row.PID != 0 && listens != row.PID {
		return healer.PendingCall{}
	}
	return row
}

// tooSoon says why the driver must not be told yet to stage the volume once more; empty if it
// may. Others may heal the volume by then.
func (p *Provider) tooSoon(c healer.Case) string {
	row := pendingCall(c, healer.Restage)
	if !row.TooSoon(c.Began, waitParts*p.cfg.StepTimeout) {
		return ""
	}
	return fmt.Sprintf("driver %s may still be at work on the last of %d calls since %s: each further one waits longer, up to %s",
		healer.QuoteName(c.Driver), row.Calls, c.BootTime.Add(row.First).UTC().Format(time.RFC3339), healer.MaxPending)
}

// Excludes implements healer.Excluder: a driver that did not say how it ended may still
// change what a step of another provider would change, too.
func (p *Provider) Excludes(c healer.Case) string {
	for _, cost := range []healer.Cost{healer.Delegate, healer.Restage} {
		if row := pendingCall(c, cost); p.atWork(c, row) {
			return fmt.Sprintf("driver %s may still be at work since %s", healer.QuoteName(c.Driver), c.BootTime.Add(row.First).UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// driverError returns the error of a step that called the driver; nil for nil. Other steps of the
// call stop where the driver may still be at work. Only a caller whose secrets count can send
// others.
func (p *Provider) driverError(c healer.Case, cost healer.Cost, pid int, with healer.StageRequest, err error) error {
	if err == nil {
		return nil
	}
	e := (*callError)(nil)
	said := errors.As(err, &e)
	refused := said && e.code == codes.Unauthenticated
	if refused && !with.Called && len(with.Secrets) == 0 {
		err = fmt.Errorf("%w; no secrets were sent with it", err)
	}
	answer := &healer.DriverError{Err: err, PID: pid, Pending: said && e.pending()}
	err = answer
	if answer.Pending && p.atWork(c, c.Pending(cost).With(pid, c.Began)) {
		err = pendingError{answer}
	}
	if refused && with.Called {
		err = &healer.Error{Kind: healer.KindUnauthenticated, Text: fmt.Sprintf("driver %s refused the secrets", healer.QuoteName(c.Driver)), Err: err}
	}
	return err
}

// pendingError is that of a driver which may still be at work: no other step of the
// call runs beside it, and none of the calls after it while Excludes says so.
type pendingError struct{ *healer.DriverError }

func (e pendingError) Unwrap() error { return e.DriverError }

// Ended is what the engine asks a step that it cannot end. Nothing tells when a driver
// ends, so the volume is free for the next call, which asks the driver again.
func (pendingError) Ended() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}
