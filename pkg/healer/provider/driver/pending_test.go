package driver

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// hands is a clock that a test moves.
type hands struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hands) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hands) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

func withClock(p *Provider) *hands {
	h := &hands{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p.memory = newMemory(h)
	return h
}

// The handler of a driver may ignore that the call ended.
func TestDriverThatDidNotAnswerIsAtWork(t *testing.T) {
	f := newFake()
	f.heal = func(ctx context.Context) (*healerpb.NodeHealerResponse, error) { <-ctx.Done(); return nil, ctx.Err() }
	p := f.serve(t)
	clock := withClock(p)
	if why := p.Excludes(lost()); why != "" {
		t.Error("before: ", why)
	}
	if err := delegateOf(t, p, lost()).Run(t.Context(), allowed); err == nil {
		t.Fatal("no error")
	}
	if why := p.Excludes(lost()); why != "driver d.example.com may still be at work since 2026-01-02T03:04:05Z" {
		t.Error(why)
	}
	other := lost()
	other.Volume.ID = "w"
	if why := p.Excludes(other); why != "" {
		t.Error("another volume: ", why)
	}
	clock.pass(stepsAtWork*p.cfg.StepTimeout - time.Millisecond)
	if p.Excludes(lost()) == "" {
		t.Error("it is over too soon")
	}
	clock.pass(time.Millisecond)
	if why := p.Excludes(lost()); why != "" {
		t.Error("it is never over: ", why)
	}
}

// What its sockets did meanwhile keeps nobody from asking whether it has ended.
func TestDriverAtWorkIsAskedAgain(t *testing.T) {
	f := newFake()
	f.heal = code(codes.DeadlineExceeded)
	p := f.serve(t)
	clock := withClock(p)
	p.cfg.StepTimeout = time.Minute
	_ = delegateOf(t, p, lost()).Run(t.Context(), allowed)
	p.memory.leaveAlone(csiSocket)
	p.memory.leaveAlone(addonsAt)
	f.heal = code(codes.Internal)
	if err := delegateOf(t, p, lost()).Run(t.Context(), allowed); err == nil || !strings.Contains(err.Error(), "INTERNAL") {
		t.Error(err)
	}
	if why := p.Excludes(lost()); why != "" {
		t.Error("it said that it has ended: ", why)
	}
	clock.pass(2 * silentFor)
	delegateOf(t, p, lost())
}

func TestDriverThatNeverSettles(t *testing.T) {
	for name, tc := range map[string]struct {
		code codes.Code
		// pauses come before each call; the last call lets others run.
		pauses []time.Duration
	}{
		"UNAVAILABLE":         {codes.Unavailable, []time.Duration{0, time.Second, time.Second}},
		"UNAVAILABLE, seldom": {codes.Unavailable, []time.Duration{0, 15 * time.Minute, 15 * time.Minute}},
		"ABORTED":             {codes.Aborted, []time.Duration{0, time.Minute, time.Minute, time.Minute, 7 * time.Minute}},
		"ABORTED, seldom":     {codes.Aborted, []time.Duration{0, 15 * time.Minute, 15 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.heal = code(tc.code)
			p := f.serve(t)
			clock := withClock(p)
			p.cfg.StepTimeout = patience // it answers at once
			run := func() (stops bool) {
				_, stops = delegateOf(t, p, lost()).Run(t.Context(), allowed).(interface{ Ended() <-chan struct{} }) //nolint:errorlint // as the engine asks
				if (p.Excludes(lost()) != "") != stops {
					t.Errorf("excludes: %q", p.Excludes(lost()))
				}
				return stops
			}
			for i, pause := range tc.pauses {
				clock.pass(pause)
				if last := i == len(tc.pauses)-1; run() == last {
					t.Errorf("call %d: stops: %v", i+1, !last)
				}
			}
			f.heal = nil
			if run() {
				t.Error("it settled")
			}
		})
	}
}

// A deadline that passed counts, whatever the driver says afterwards.
func TestAnswersAfterADeadline(t *testing.T) {
	f := newFake()
	f.heal = code(codes.Canceled)
	p := f.serve(t)
	clock := withClock(p)
	p.cfg.StepTimeout = time.Minute
	_ = delegateOf(t, p, lost()).Run(t.Context(), allowed)
	f.heal = code(codes.Unavailable)
	for range maxPending + 1 {
		clock.pass(time.Second)
		_ = delegateOf(t, p, lost()).Run(t.Context(), allowed)
		if p.Excludes(lost()) == "" {
			t.Error("others may run")
		}
	}
}

// The volume itself may hang by then, so that the driver is not asked.
func TestDriverAtWorkOnAVolumeThatHangs(t *testing.T) {
	p := provider(&providertest.Tools{Sockets: map[string]func(context.Context) (net.Conn, error){
		csiSocket: raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
	}})
	c := lost()
	p.noteAnswer(c, methodHeal, &callError{row: rowOf(codes.Aborted)})
	c.Superblocks = nil
	if e := collect(t, p, c); e != (Evidence{}) || p.Excludes(c) == "" {
		t.Errorf("%+v, %q", e, p.Excludes(c))
	}
}

// A driver that answered ABORTED to NodeStageVolume is at work until what it staged answers.
func TestStagingIsSettledByWhatIsStaged(t *testing.T) {
	p, _, _ := stagingDriver(t, healer.UnmountFirst, func(*fakeHost) error { return status.Error(codes.Aborted, "") })
	c := dead()
	if err := restageStep(t, p, c).Run(t.Context(), func(context.Context) error { return nil }); err == nil {
		t.Fatal("it does not fail")
	}
	if p.Excludes(c) == "" {
		t.Error("other steps may run beside the driver")
	}
	sb := c.Superblocks[fuseDev]
	sb.Answer.Errno = 0
	c.Superblocks = map[facts.Dev]facts.Superblock{fuseDev: sb}
	if why := p.Excludes(c); why != "" {
		t.Error(why)
	}
}
