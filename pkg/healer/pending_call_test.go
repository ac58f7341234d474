package healer

import (
	"testing"
	"time"
)

// A driver counts as at work for twice as long after each further call, and for ten minutes in
// all.
func TestPendingCall(t *testing.T) {
	const while = time.Minute
	var p PendingCall
	if p.AtWork(0, while) {
		t.Error("none is at work")
	}
	now := time.Hour
	begun := now
	for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 3 * time.Minute} {
		p = p.With(7, now)
		if !p.AtWork(now+want-1, while) || p.AtWork(now+want, while) {
			t.Errorf("after %d calls it is not at work for %s", p.Calls, want)
		}
		now += want
	}
	if now-begun != MaxPending {
		t.Errorf("it was at work for %s", now-begun)
	}
	if p = p.With(7, now); p.AtWork(now, while) || p.First != begun {
		t.Errorf("it is at work for ever: %+v", p)
	}
	for range 20 { // it is called again all the same, ever more rarely
		if !p.TooSoon(now+MaxPending-1, while) || p.TooSoon(now+MaxPending, while) {
			t.Errorf("after %d calls the next one waits for another time", p.Calls)
		}
		now += MaxPending
		p = p.With(7, now)
	}
	if q := p.With(0, now); q.First != begun {
		t.Errorf("a process that cannot be seen begins a row: %+v", q)
	}
	if q := p.With(8, now); q != (PendingCall{First: now, Last: now, Calls: 1, PID: 8}) {
		t.Errorf("another process: %+v", q)
	}
	if now += pendingRow + 1; p.With(7, now) != (PendingCall{First: now, Last: now, Calls: 1, PID: 7}) {
		t.Errorf("much later: %+v", p.With(7, now))
	}
}
