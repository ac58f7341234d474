package healer

import (
	"context"
	"time"
)

// PendingCall is a row of calls of the driver to change the volume, each of which left open
// whether the driver is still at work: a second one beside it could start a second daemon on
// the same storage. Any other answer ends the row. The zero value is none.
type PendingCall struct {
	// First is when the first of the calls ended, Last when the last one did, in time since
	// the boot; of a call whose end was not recorded it is the latest that it may have.
	First time.Duration `json:"firstSinceBoot,omitempty"`
	Last  time.Duration `json:"lastSinceBoot,omitempty"`
	Calls int           `json:"calls,omitempty"`
	// PID is the process that was called last; 0 if it cannot be seen. Another one that
	// listens in its place is not at work on them.
	PID int `json:"pid,omitempty"`
}

const (
	// MaxPending is how long a driver counts as at work, since the first call: one that stays
	// at work would keep everything else from healing the volume for ever. It is also the
	// longest time between two calls.
	MaxPending = 10 * time.Minute
	// pendingRow is how long after the last call another one belongs to the same row.
	pendingRow = time.Hour
)

// AtWork reports whether the driver may still be at work at a time since the boot.
func (p PendingCall) AtWork(now, while time.Duration) bool {
	return p.TooSoon(now, while) && now < p.First+MaxPending
}

// TooSoon reports whether the driver must not be called again yet: for a while after the last
// call, for twice as long after each further one. That has no end as long as the driver answers
// so.
func (p PendingCall) TooSoon(now, while time.Duration) bool {
	return p.Calls > 0 && now < p.Last+min(while<<min(p.Calls-1, 10), MaxPending)
}

// With returns the row with a call of a process that ended now.
func (p PendingCall) With(pid int, now time.Duration) PendingCall {
	another := pid != 0 && p.PID != 0 && pid != p.PID
	if p.Calls == 0 || another || now > p.Last+pendingRow {
		p = PendingCall{First: now}
	}
	p.Last, p.Calls, p.PID = now, p.Calls+1, pid
	return p
}

type recorderKey struct{}

// CallRecorder records a call of a driver's process that is about to begin, and that ends within
// a time.
type CallRecorder func(pid int, within time.Duration) error

// WithCallRecorder adds what a step asks right before it has the driver change the volume.
func WithCallRecorder(ctx context.Context, record CallRecorder) context.Context {
	return context.WithValue(ctx, recorderKey{}, record)
}

// RecordCall is for a step that is about to call the driver. The call must not begin if it fails:
// a server that is killed during it would not know of it, and make a second one beside it.
func RecordCall(ctx context.Context, pid int, within time.Duration) error {
	if record, is := ctx.Value(recorderKey{}).(CallRecorder); is {
		return record(pid, within)
	}
	return nil
}

// DriverError is the error of a step whose driver was asked to change the volume. Steps that
// did not come to that have others.
type DriverError struct {
	Err error
	// PID is the process that was called; 0 if it cannot be seen.
	PID int
	// Pending is true where the answer, or that there was none, leaves open whether the driver
	// is still at work.
	Pending bool
}

func (e *DriverError) Error() string { return e.Err.Error() }

func (e *DriverError) Unwrap() error { return e.Err }

// Pending returns what the driver may still be at work on, of steps of a cost. What answers at
// the staging mount point shows that the driver has staged it.
func (c Case) Pending(cost Cost) PendingCall {
	switch {
	case !c.RecordOfThisBoot():
	case cost == Delegate:
		return c.Record.PendingHeal
	case cost == Restage && !c.StagedAnswers():
		return c.Record.PendingStage
	}
	return PendingCall{}
}
