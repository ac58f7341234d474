package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// What may pass by itself has to last, however many events there are: kubelet and drivers
// mount in several calls.
func TestEventsConfirmNothing(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for range 4 {
			n.breaks("v0", fault{reason: healer.NotMounted})
			time.Sleep(time.Second + changeGap/10)
		}
		checks := len(n.since(start)["v0"])
		n.do(func() { delete(n.faults, "v0") })
		time.Sleep(5 * time.Minute)
		if got := n.healsOf("v0", start); got != nil || checks < 3 {
			t.Errorf("healed at %v after %d checks within 5 s", got, checks)
		}
	})
}

// What changes soon after another change counts when the interval is over.
func TestALateChangeIsNotLost(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for range 2 {
			n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENODEV})
			time.Sleep(10 * time.Second)
		}
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(3 * time.Minute)
		if got := n.healsOf("v0", start); len(got) != 1 {
			t.Errorf("healed at %v", got)
		}
	})
}

// A heal that cures what it was for helped, though something is left that no step heals.
func TestHealThatLeavesSomething(t *testing.T) {
	n := acting(100)
	n.healed = func(r healer.Report) (healer.Report, error) {
		r.After.Conditions = []healer.Condition{{Status: healer.Degraded, Reason: healer.ContainerUnverified, MountPoint: r.Volume.Path}}
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 100 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer"})
		}
		time.Sleep(5 * time.Minute)
		n.do(func() {
			if len(n.faults) != 0 || len(n.heals) != 100 {
				t.Errorf("%d are still sick after %d heals", len(n.faults), len(n.heals))
			}
		})
	})
}

// Volumes that are gone, with their paths or before them, are not sick any more.
func TestSickVolumesThatAreGone(t *testing.T) {
	n := acting(6)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 6 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer", err: syscall.EBUSY})
		}
		time.Sleep(time.Minute)
		n.do(func() {
			for i := range 3 {
				n.unwanted[fmt.Sprint("/pods/", i)] = true
				delete(n.faults, fmt.Sprint("v", i))
			}
			n.mounts, n.paths = nil, n.paths[:3]
		})
		n.changed()
		time.Sleep(20 * time.Minute)
		start := time.Now()
		time.Sleep(time.Hour)
		s := n.loop.States(context.Background())
		if len(s.Volumes) != 3 {
			t.Errorf("%d volumes", len(s.Volumes))
		}
		for _, v := range s.Volumes {
			if heals := n.healsOf(v.VolumeID, start); !v.Since.IsZero() || heals != nil {
				t.Errorf("%s is sick since %s, healed at %v", v.VolumeID, v.Since, heals)
			}
		}
		n.do(func() {
			if len(n.recovered) != 0 {
				t.Errorf("recovered: %v", n.recovered)
			}
		})
	})
}

// A heal that tried something and had no answer counts as one that failed.
func TestHealWithoutAnAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		err             error
		atLeast, atMost int
		left            healer.LeftReason
	}{
		"secrets refused":   {err: &healer.Error{Kind: healer.KindUnauthenticated, Text: "step"}, atLeast: 2, atMost: 2, left: healer.PermissionMissing},
		"what came after":   {err: healer.Failed("observe", errors.New("what?")), atLeast: 40, atMost: 60},
		"the disk is going": {err: healer.Failed("observe", syscall.ENODEV), atLeast: 1, atMost: 1, left: healer.TerminalError},
		"a panic":           {err: healer.Failed("internal error, see the log", nil), atLeast: 40, atMost: 60},
	} {
		t.Run(name, func(t *testing.T) {
			n := acting(1)
			n.healed = func(r healer.Report) (healer.Report, error) {
				if name == "a panic" {
					r = healer.Report{}
				}
				return r, tc.err
			}
			run(t, n, func() {
				time.Sleep(2 * time.Minute)
				start := time.Now()
				n.breaks("v0", fault{reason: healer.Disconnected, err: errors.New("no")})
				time.Sleep(10 * time.Hour)
				if got := n.healsOf("v0", start); len(got) < tc.atLeast || len(got) > tc.atMost {
					t.Errorf("healed at %v, want %d to %d times", got, tc.atLeast, tc.atMost)
				}
				synctest.Wait()
				if left := n.loop.known.all[0].sick.left; left.Reason != tc.left || (left.Detail == "") != (tc.left == "") {
					t.Errorf("left alone because %+v", left)
				}
			})
		})
	}
}

// What breaks again as soon as it is healed is healed ever more rarely, and at once again
// when it was well for an interval.
func TestRelapses(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for time.Since(start) < time.Hour {
			well := false
			n.do(func() { well = n.faults["v0"] == nil })
			if well {
				n.breaks("v0", fault{reason: healer.Disconnected})
			}
			time.Sleep(100 * time.Millisecond)
		}
		got := n.healsOf("v0", start)
		if len(got) < 10 || len(got) > 20 || got[2] > 5*time.Second {
			t.Errorf("healed %d times: %v", len(got), got)
		}
		time.Sleep(20 * time.Minute)
		start = time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(2 * time.Second)
		if got := n.healsOf("v0", start); len(got) != 1 {
			t.Errorf("after a time without faults healed at %v", got)
		}
	})
}

// Where the volumes of a backend are tried one after the other, those that always fail do
// not keep the others from being tried.
func TestTrialsTakeTurns(t *testing.T) {
	n := acting(20)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 10 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, err: syscall.EBUSY})
		}
		time.Sleep(6 * time.Hour)
		start := time.Now()
		n.breaks("v15", fault{reason: healer.Disconnected})
		time.Sleep(15 * time.Minute)
		if got := n.healsOf("v15", start); len(got) != 1 {
			t.Errorf("healed at %v", got)
		}
	})
}

// What was healed after it failed for long is healed at once when it breaks again.
func TestBreaksAfterFailingForLong(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.EBUSY})
		time.Sleep(2 * time.Hour)
		n.do(func() { n.faults["v0"].err = nil })
		for well := false; !well; n.do(func() { well = n.faults["v0"] == nil }) {
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected})
		time.Sleep(2 * time.Second)
		if got := n.healsOf("v0", start); len(got) != 1 {
			t.Errorf("healed at %v", got)
		}
	})
}

// Volumes that fail although something changes at them all the time keep no other waiting.
func TestChangesAtSomeKeepNoOtherWaiting(t *testing.T) {
	n := acting(5)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 5 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, err: syscall.EBUSY})
		}
		time.Sleep(time.Hour)
		n.do(func() { n.faults["v4"].err = nil })
		for range 3600 {
			time.Sleep(2 * time.Second)
			for i := range 4 {
				n.remount(fmt.Sprint("v", i))
			}
			n.changed()
		}
		n.do(func() {
			if n.faults["v4"] != nil {
				t.Error("it was not healed in two hours")
			}
		})
	})
}

// A sick volume whose heal is held back is checked as soon as something happens to it.
func TestEventAtAVolumeThatIsHeldBack(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for range 2 { // the second uses up what a change forgives
			n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.EBUSY})
			time.Sleep(45 * time.Second)
		}
		for n.rested("v0"); len(n.healsOf("v0", time.Now().Add(-2*changeGap))) > 0; n.rested("v0") {
			time.Sleep(changeGap) // what a heal did is no change
		}
		start := time.Now()
		n.do(func() { delete(n.faults, "v0") })
		n.do(func() { n.lastMount++; n.mounts[0].ID = n.lastMount })
		n.changed()
		time.Sleep(100 * time.Millisecond)
		// The next heal may be due at that very moment: it looks, too.
		if got := len(n.since(start)["v0"]) + len(n.healsOf("v0", start)); got != 1 {
			t.Errorf("looked at %d times within 100 ms", got)
		}
	})
}

// Nodes whose volumes failed at the same time do not try at the same times.
func TestTriesSpreadBetweenNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		var nodes []*fakeNode
		for range 2 {
			n := acting(1)
			n.changes, n.happens = make(chan struct{}, 1), make(chan node.SuperblockEvent)
			l := New(Config{Node: n, Engine: n, Events: n.SuperblockEvents, Publish: n.publish, Interval: time.Minute, Action: n.does})
			go func() { l.Run(ctx); ended <- struct{}{} }()
			nodes = append(nodes, n)
		}
		time.Sleep(2 * time.Minute)
		for _, n := range nodes {
			n.rested("v0")
		}
		start := time.Now()
		for _, n := range nodes {
			n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.EBUSY})
		}
		time.Sleep(time.Hour)
		one, other := nodes[0].healsOf("v0", start), nodes[1].healsOf("v0", start)
		if len(one) < 10 || slices.Equal(one[5:], other[5:]) {
			t.Errorf("both try at %v", one)
		}
		cancel()
		<-ended
		<-ended
	})
}

// A loop that is switched on begins all checks over an interval, not at once.
func TestSwitchedOnAgain(t *testing.T) {
	n := many(1000)
	run(t, n, func() {
		time.Sleep(3 * time.Minute)
		n.do(func() { n.action = Off })
		time.Sleep(10 * time.Minute)
		n.do(func() { n.action = Observe })
		time.Sleep(actionGap)
		start := time.Now()
		time.Sleep(10 * time.Second)
		if got := len(n.since(start)); got > 300 {
			t.Errorf("%d of 1000 volumes were checked within 10 s", got)
		}
		time.Sleep(2 * time.Minute)
		if got := len(n.since(start)); got != 1000 {
			t.Errorf("%d of 1000 volumes were checked", got)
		}
	})
}

// A sick volume whose checks have no answer has its turn no more often than others.
func TestNoAnswerIsNoReasonToHurry(t *testing.T) {
	n := acting(2)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v0", fault{reason: healer.NotMounted, refused: true})
		time.Sleep(30 * time.Second)
		n.do(func() { n.noAnswer = &healer.Error{Kind: healer.KindBusy} })
		start := time.Now()
		time.Sleep(10 * time.Minute)
		if got := len(n.since(start)["v0"]); got > 12 {
			t.Errorf("checked %d times in 10 minutes", got)
		}
	})
}

// A volume that keeps a condition which no step heals, and breaks again as soon as it is
// healed, is healed ever more rarely, whatever happens to its mounts meanwhile.
func TestRelapsesOfAVolumeThatKeepsSomething(t *testing.T) {
	n := acting(1)
	n.keeps = healer.ContainerUnverified
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		for time.Since(start) < time.Hour {
			well := false
			n.do(func() { well = n.faults["v0"] == nil })
			if well {
				n.breaks("v0", fault{reason: healer.Disconnected})
			} else {
				n.remount("v0")
				n.changed()
			}
			time.Sleep(2 * time.Second)
		}
		got := n.healsOf("v0", start)
		if len(got) < 10 || len(got) > 20 {
			t.Errorf("healed %d times: %v", len(got), got)
		}
		n.do(func() {
			for _, r := range n.recovered {
				if !r.healed || r.after > 15*time.Minute {
					t.Errorf("recovered: %v", r)
				}
			}
			if len(n.recovered) != len(got) {
				t.Errorf("%d heals, and recovered %d times", len(got), len(n.recovered))
			}
		})
	})
}

// A heal helped also if one of its steps failed before another one cured the volume.
func TestHealInWhichAStepFails(t *testing.T) {
	n := acting(1)
	n.keeps = healer.ContainerUnverified
	n.healed = func(r healer.Report) (healer.Report, error) {
		r.Steps = append([]healer.Outcome{{Step: "rebind", MountPoint: r.Volume.Path, Err: syscall.ENODEV}}, r.Steps...)
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 20 { // of other kinds, too
			time.Sleep(10 * time.Minute)
			n.breaks("v0", fault{reason: healer.Reason(fmt.Sprint("R", i))})
		}
		time.Sleep(2 * time.Minute)
		n.do(func() {
			if len(n.heals) != 20 || len(n.faults) != 0 {
				t.Errorf("healed %d times, left alone because %q", len(n.heals), n.loop.known.all[0].sick.left)
			}
		})
	})
}

// A check that finds nothing of a volume, because nobody said in time that it is wanted,
// begins no schedule anew.
func TestNotFoundForAMoment(t *testing.T) {
	n := acting(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		start := time.Now()
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENODEV})
		for range 20 {
			time.Sleep(10 * time.Minute)
			n.do(func() { n.noAnswer = healer.NotFound("not wanted") })
			time.Sleep(59 * time.Second) // for an interval it would be gone
			n.do(func() { n.noAnswer = nil })
		}
		if got := n.healsOf("v0", start); len(got) != 1 {
			t.Errorf("healed at %v", got)
		}
	})
}

// A heal that fails for good and leaves something else to see is given up all the same.
func TestHealThatChangesWhatIsFound(t *testing.T) {
	n := acting(1)
	n.healed = func(r healer.Report) (healer.Report, error) {
		r.After.Conditions = []healer.Condition{{Status: healer.Inaccessible, Reason: healer.DeviceMissing, MountPoint: r.Volume.Path, Acute: true}}
		r.After.Steps = nil
		return r, nil
	}
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.breaks("v0", fault{reason: healer.Disconnected, err: syscall.ENODEV})
		time.Sleep(2 * time.Second)
		if left := n.left(); !slices.Equal(left, []string{"TerminalError: another try cannot help"}) {
			t.Errorf("left alone because %q", left)
		}
	})
}

// What a check showed long ago is not told as if it were so.
func TestNoAnswerForLong(t *testing.T) {
	n := many(1)
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		n.do(func() { n.noAnswer = &healer.Error{Kind: healer.KindBusy} })
		time.Sleep(10 * time.Minute)
		s := n.loop.States(context.Background()).Volumes
		if len(s) != 1 || s[0].Verdict != "" || len(s[0].Health) != 1 || s[0].Health[0].Reason != healer.CheckUnanswered {
			t.Errorf("%+v", s)
		}
	})
}

// A sick volume whose heal is held back, and whose mounts change all the time,
// is checked as often as a healthy one.
func TestStormAtAVolumeThatIsHeldBack(t *testing.T) {
	n := acting(6)
	n.took = 60 * time.Millisecond
	run(t, n, func() {
		time.Sleep(2 * time.Minute)
		for i := range 6 {
			n.breaks(fmt.Sprint("v", i), fault{reason: healer.Disconnected, server: "filer", err: syscall.EBUSY})
		}
		time.Sleep(3 * time.Minute)
		start := time.Now()
		for range 6000 {
			n.remount("v3")
			n.changed()
			time.Sleep(10 * time.Millisecond)
		}
		if got := len(n.since(start)["v3"]); got < 50 || got > 61 {
			t.Errorf("checked %d times in 60 s", got)
		}
	})
}
