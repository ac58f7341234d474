package engine

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// What a driver may be at work on outlives the server, until the driver says how it ended.
func TestPendingCallIsRecorded(t *testing.T) {
	noAnswer := &healer.DriverError{Err: errors.New("no answer in time"), PID: 7, Pending: true}
	for _, cost := range []healer.Cost{healer.Delegate, healer.Restage} {
		b := newFixture(t)
		b.healthy()
		b.fall(podA, healer.NotMounted)
		var answer error
		b.steps = []healer.Step{{
			Name: "driver's", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: cost, Heals: []healer.Reason{healer.NotMounted},
			Run: func(context.Context, func(context.Context) error) error { return answer },
		}}
		heal := func(with error) healer.PendingCall {
			t.Helper()
			answer = with
			if r := b.heal(volume); len(r.Steps) != 1 {
				t.Fatalf("%+v", r)
			}
			r := b.notes.records[volumeKey(driver, volID)]
			if cost == healer.Restage {
				r.PendingHeal = r.PendingStage
			}
			return r.PendingHeal
		}
		if p := heal(noAnswer); p.Calls != 1 || p.PID != 7 || p.First == 0 || p.First != p.Last {
			t.Errorf("it recorded %+v", p)
		}
		if p := heal(errors.New("nobody was asked")); p.Calls != 1 {
			t.Errorf("it recorded %+v", p)
		}
		if p := heal(noAnswer); cost == healer.Delegate && (p.Calls != 2 || p.First >= p.Last) { // what is staged answers
			t.Errorf("it recorded %+v", p)
		}
		if p := heal(&healer.DriverError{Err: errors.New("INTERNAL")}); p != (healer.PendingCall{}) {
			t.Errorf("it recorded %+v", p)
		}
		heal(noAnswer)
		if p := heal(nil); p != (healer.PendingCall{}) {
			t.Errorf("it recorded %+v", p)
		}
	}
}

// What a server was killed in the middle of stands in the record before the driver is called; a
// call that cannot be recorded does not begin.
func TestCallIsRecordedBeforeItBegins(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	var during healer.PendingCall
	b.steps = []healer.Step{{
		Name: "driver's", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: healer.Delegate, Heals: []healer.Reason{healer.NotMounted},
		Run: func(ctx context.Context, _ func(context.Context) error) error {
			for range 2 { // of one step
				if err := healer.RecordCall(ctx, 7, time.Hour); err != nil {
					return err
				}
			}
			during = b.notes.records[volumeKey(driver, volID)].PendingHeal
			return &healer.DriverError{Err: errors.New("no answer in time"), PID: 7, Pending: true}
		},
	}}
	b.heal(volume)
	after := b.notes.records[volumeKey(driver, volID)].PendingHeal
	if during.Calls != 1 || during.PID != 7 || during.Last < time.Hour || after.Calls != 1 || after.Last >= during.Last {
		t.Errorf("it recorded %+v, and then %+v", during, after)
	}
	b.notes.saveErr = errors.New("no space")
	if r := b.heal(volume); len(r.Steps) != 1 || !errors.Is(r.Steps[0].Err, healer.ErrRefused) {
		t.Errorf("%+v", r.Steps)
	}
}

// That what was staged has answered is saved in the same round, right before another step calls the
// driver, and stays.
func TestCallKeepsWhatTheRoundSaved(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	key := volumeKey(driver, volID)
	begun := b.notes.records[key]
	begun.Restaging, begun.PendingStage = true, healer.PendingCall{Calls: 1}
	b.notes.records[key] = begun
	var during healer.Record
	b.steps = []healer.Step{{
		Name: "driver's", MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA}, Cost: healer.Delegate, Heals: []healer.Reason{healer.NotMounted},
		Run: func(ctx context.Context, _ func(context.Context) error) error {
			err := healer.RecordCall(ctx, 7, time.Hour)
			during = b.notes.records[key]
			return err
		},
	}}
	b.heal(volume)
	if during.Restaging || during.PendingStage.Calls > 0 || during.PendingHeal.Calls != 1 {
		t.Errorf("while the driver is called, the record says %+v", during)
	}
}

// A step that had the volume staged anew has begun until what is staged has answered: also
// where a daemon mounted that never served, and gave up.
func TestRestagingUntilItAnswers(t *testing.T) {
	answers, dead := facts.Answer{Asked: true}, facts.Answer{Asked: true, Errno: syscall.ENOTCONN}
	for name, tc := range map[string]struct {
		stack []facts.Mount
		facts.Answer
		want bool
	}{
		"bare":          {nil, facts.Answer{}, true},
		"dead":          {on(healer.RoleStaging, staging, dev(1)).Stack, dead, true},
		"never answers": {on(healer.RoleStaging, staging, dev(1)).Stack, facts.Answer{TimedOut: true}, true},
		"answers":       {on(healer.RoleStaging, staging, dev(1)).Stack, answers, false},
	} {
		b := newFixture(t)
		c := healer.Case{
			BootID: "b", Driver: driver, Volume: volume, Record: &healer.Record{BootID: "b", Driver: driver, VolumeID: volID, Restaging: true, PendingStage: healer.PendingCall{Calls: 1}},
			MountPoints: []healer.MountPoint{{Role: healer.RoleStaging, Path: staging, Proven: true, Stack: tc.stack}},
			Superblocks: map[facts.Dev]healer.Superblock{dev(1): {Dev: dev(1), FSType: "fuse.x", Answer: tc.Answer}},
		}
		if c.Restaging() != tc.want || (c.Pending(healer.Restage).Calls > 0) != tc.want {
			t.Errorf("%s: begun: %v, pending: %v", name, c.Restaging(), c.Pending(healer.Restage))
		}
		for _, conditions := range [][]healer.Condition{nil, {{Status: healer.Inaccessible, Reason: healer.Disconnected, MountPoint: podA}}} {
			c.Began = node.SinceBoot()
			b.notes.records = map[key]healer.Record{volumeKey(driver, volID): *c.Record}
			if err := b.engine.save(t.Context(), healer.Diagnosis{Case: c, Conditions: conditions}, &volumeLock{table: b.engine.locks}); err != nil {
				t.Fatal(err)
			}
			if r := b.notes.records[volumeKey(driver, volID)]; r.Restaging != tc.want || (r.PendingStage.Calls > 0) != tc.want {
				t.Errorf("%s: the record says %+v", name, r)
			}
		}
		c.BootID = "a"
		if c.Restaging() || c.Pending(healer.Restage).Calls > 0 {
			t.Errorf("%s: it counts in another boot", name)
		}
	}
}
