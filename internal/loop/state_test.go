package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The time of the last search stays while searches fail, also from the start.
func TestSearchedStaysWhileSearchesFail(t *testing.T) {
	n := many(1)
	n.broken = errors.New("no answer")
	run(t, n, func() {
		start := time.Now()
		time.Sleep(10 * time.Minute)
		if s := n.loop.States(context.Background()); !s.Searched.Equal(start) {
			t.Errorf("searched %s after the start without a search that succeeded", s.Searched.Sub(start))
		}
		n.do(func() { n.broken = nil })
		time.Sleep(time.Minute)
		if s := n.loop.States(context.Background()); len(s.Volumes) != 1 || time.Since(s.Searched) > time.Minute {
			t.Errorf("searched %s ago: %+v", time.Since(s.Searched), s)
		}
		n.do(func() { n.broken = errors.New("no answer") })
		time.Sleep(10 * time.Minute)
		if s := n.loop.States(context.Background()); len(s.Volumes) != 1 || time.Since(s.Searched) < 9*time.Minute {
			t.Errorf("searched %s ago: %+v", time.Since(s.Searched), s)
		}
	})
}

// A loop whose goroutine hangs still says what it may do and when it last searched, and
// whoever asks it waits no longer than the context lives.
func TestStatesOfALoopThatHangs(t *testing.T) {
	n := many(1)
	synctest.Test(t, func(t *testing.T) {
		n.changes, n.happens = make(chan struct{}, 1), make(chan node.SuperblockEvent)
		release := make(chan struct{})
		l := New(Config{Node: n, Engine: n, Events: n.SuperblockEvents, Publish: func(healer.Report) { <-release }, Interval: time.Minute, Action: n.does})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx)
		}()
		time.Sleep(10 * time.Minute)
		asked := time.Now()
		bounded, done := context.WithTimeout(ctx, time.Second)
		defer done()
		if s := l.States(bounded); !s.On || time.Since(s.Searched) < 8*time.Minute || len(s.Volumes) > 0 || time.Since(asked) != time.Second {
			t.Errorf("after %s: %+v", time.Since(asked), s)
		}
		close(release)
		cancel()
		<-ended
	})
}

// A volume that never answered is told, too; one is not for the time that the loop was off.
func TestUnansweredSince(t *testing.T) {
	unanswered := func(n *fakeNode) (count int) {
		for _, v := range n.loop.States(context.Background()).Volumes {
			if len(v.Health) > 0 {
				count++
			}
		}
		return count
	}
	n := many(1)
	n.noAnswer = errors.New("no worker")
	run(t, n, func() {
		time.Sleep(10 * time.Minute)
		if got := unanswered(n); got != 1 {
			t.Errorf("%d of 1 that never answered", got)
		}
	})
	n = many(100)
	run(t, n, func() {
		time.Sleep(3 * time.Minute)
		n.do(func() { n.action = Off })
		time.Sleep(10 * time.Minute)
		n.do(func() { n.action = Observe })
		time.Sleep(actionGap + time.Second)
		if got := unanswered(n); got != 0 {
			t.Errorf("%d of 100 after a time off", got)
		}
	})
}

// Before the loop has checked all volumes, one that is not seen may be sick; one that never
// answers is told, and keeps nobody waiting for ever.
func TestCheckedAll(t *testing.T) {
	for name, tc := range map[string]struct {
		volumes          int
		broken, noAnswer error
		// until is how long not all are checked, from when on all are; zero: never.
		until, from time.Duration
	}{
		"all":               {volumes: 100, until: 30 * time.Second, from: time.Minute},
		"none":              {from: time.Second},
		"without a search":  {volumes: 1, broken: errors.New("no answer"), until: time.Hour},
		"without an answer": {volumes: 1, noAnswer: errors.New("no worker"), until: 3 * time.Minute, from: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			n := many(tc.volumes)
			n.broken, n.noAnswer = tc.broken, tc.noAnswer
			run(t, n, func() {
				checked := func() bool { return n.loop.States(context.Background()).CheckedAll }
				start := time.Now()
				if time.Sleep(tc.until); tc.until > 0 && checked() {
					t.Errorf("all are checked after %v", time.Since(start))
				}
				if time.Sleep(tc.from - tc.until); tc.from > 0 && !checked() {
					t.Errorf("not all are checked after %v", time.Since(start))
				}
			})
		})
	}
}

// What the loop failed at last is told until it does not fail.
func TestTheLastErrorIsTold(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		told := func(want string) {
			t.Helper()
			if s := n.loop.States(context.Background()); len(s.Volumes) != 1 || !strings.Contains(s.Volumes[0].Error, want) || (want == "") != (s.Volumes[0].Error == "") || (want == "") != s.Volumes[0].Failed.IsZero() {
				t.Errorf("want the error %q: %+v", want, s.Volumes)
			}
		}
		time.Sleep(2 * time.Minute)
		told("")
		n.breaks("v0", fault{reason: healer.Disconnected, err: errors.New("the driver says no")})
		time.Sleep(2 * time.Minute)
		told("replace at /pods/0: the driver says no")
		n.do(func() { delete(n.faults, "v0") })
		time.Sleep(2 * time.Minute)
		told("")
	})
}

// A step that failed for good is told, also beside one that was refused for a moment, for which the
// volume is tried again.
func TestAFailureBesideARefusal(t *testing.T) {
	for rule, left := range map[healer.Rule]bool{healer.RuleAPI: false, healer.RuleWrite: true} {
		for _, err := range []error{syscall.ENODEV, context.DeadlineExceeded} {
			n := acting(1)
			n.healed = func(r healer.Report) (healer.Report, error) {
				r.Refused = []healer.Refusal{{Step: "rebind", Rule: rule}}
				return r, nil
			}
			run(t, n, func() {
				start := time.Now()
				n.breaks("v0", fault{reason: healer.Disconnected, err: err})
				time.Sleep(time.Hour)
				s := n.loop.States(context.Background()).Volumes[0]
				left := left && errors.Is(err, syscall.ENODEV)
				if heals := n.healsOf("v0", start); s.Error != "replace at /pods/0: "+err.Error() || (s.Left != healer.LeftAlone{}) != left || (len(heals) == 1) != left {
					t.Errorf("%s, %v: healed at %v, %+v", rule, err, heals, s)
				}
			})
		}
	}
}

// A volume that cannot be judged is neither healthy nor abnormal: what was wrong before is kept
// for an interval, is not healed, and has not recovered.
func TestVolumeThatCannotBeJudged(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		state := func() healer.VolumeState {
			s := n.loop.States(context.Background())
			if len(s.Volumes) != 1 {
				t.Fatalf("%+v", s)
			}
			return s.Volumes[0]
		}
		time.Sleep(2 * time.Minute)
		n.do(func() { n.unjudged["v0"], n.mounts = true, nil })
		n.changed()
		time.Sleep(10 * time.Second)
		s := state()
		if s.Verdict != healer.NotJudged || !s.Since.IsZero() || len(s.Health) != 1 || s.Health[0].Reason != healer.ReasonUnjudged {
			t.Errorf("%+v", s)
		}
		n.do(func() { delete(n.unjudged, "v0") })
		n.breaks("v0", fault{reason: healer.Disconnected, refused: true})
		time.Sleep(2 * time.Minute)
		if s := state(); s.Verdict != healer.Abnormal {
			t.Errorf("%+v", s)
		}
		n.do(func() { n.unjudged["v0"], n.mounts = true, nil })
		n.changed()
		time.Sleep(2 * time.Minute)
		start := time.Now()
		time.Sleep(20 * time.Minute)
		if s := state(); s.Verdict != healer.NotJudged || !s.Since.IsZero() || n.healsOf("v0", start) != nil {
			t.Errorf("%+v, healed at %v", s, n.healsOf("v0", start))
		}
		n.do(func() {
			if len(n.recovered) != 0 {
				t.Errorf("recovered: %v", n.recovered)
			}
		})
	})
}

// A check that failed is forgotten when one has an answer, also where the volume is sick.
func TestTheErrorOfACheckGoes(t *testing.T) {
	n := many(1)
	run(t, n, func() {
		n.do(func() { n.noAnswer = errors.New("no worker") })
		time.Sleep(2 * time.Minute)
		n.do(func() { n.noAnswer, n.keeps = nil, healer.OutOfSpace })
		time.Sleep(2 * time.Minute)
		if s := n.loop.States(context.Background()).Volumes[0]; s.Error != "" || !s.Failed.IsZero() {
			t.Errorf("%+v", s)
		}
	})
}

// A volume that is busy shows nothing new; once that has been so for long it is what fails, and a call's
// answer of before is no longer the last word.
func TestBusyForGood(t *testing.T) {
	n := many(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.do(func() { n.noAnswer = &healer.Error{Kind: healer.KindBusy, Text: "busy"} })
		time.Sleep(2 * time.Minute)
		if s := n.loop.States(context.Background()).Volumes[0]; s.Error != "" || !s.Failed.IsZero() {
			t.Errorf("after two minutes: %+v", s)
		}
		time.Sleep(time.Hour)
		if s := n.loop.States(context.Background()).Volumes[0]; s.Error == "" || time.Since(s.Failed) > 2*time.Minute {
			t.Errorf("after an hour: %+v", s)
		}
	})
}

// What a heal failed at is told again when a check that failed after it is followed by one that had an answer.
func TestTheErrorOfAHealStays(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v0", fault{reason: healer.Disconnected, restages: true, err: fmt.Errorf("restage: %w", syscall.EBUSY)})
		told := func(want string) {
			t.Helper()
			if s := n.loop.States(context.Background()).Volumes[0]; !strings.Contains(s.Error, want) {
				t.Errorf("want %q: %+v", want, s)
			}
		}
		time.Sleep(3 * time.Hour) // a heal is rare by now
		told("busy")
		n.do(func() { n.noAnswer = errors.New("no worker") })
		time.Sleep(65 * time.Second)
		told("no worker")
		n.do(func() { n.noAnswer = nil })
		time.Sleep(65 * time.Second)
		told("busy")
	})
}
