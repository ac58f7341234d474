package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func outcomes(r healer.Report) string {
	var names []string
	for _, o := range r.Steps {
		names = append(names, o.Step)
	}
	return strings.Join(names, " ")
}

func TestSickWithoutStepsIsAbnormal(t *testing.T) {
	b := newFixture(t)
	b.fall(podA, healer.IOError)
	r := b.heal(volume)
	if r.Verdict() != healer.Abnormal || len(r.Steps) != 0 || len(r.Refused) != 0 || len(r.After.Conditions) != 1 {
		t.Errorf("%+v", r)
	}
	if b.notes.saves != 0 {
		t.Error("a sick volume was recorded as healthy")
	}
}

func TestAuditNamesTheCaller(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, b.cure(podA))
	if _, err := b.engine.Heal(healer.WithCaller(t.Context(), "jane"), volume); err != nil {
		t.Fatal(err)
	}
	for _, e := range append(b.notes.before, b.notes.after...) {
		if e.Caller != "jane" {
			t.Errorf("audited as %+v", e)
		}
	}
	if len(b.notes.before) == 0 {
		t.Error("nothing was audited")
	}
}

func TestHealedIsWhatAFreshObservationSays(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, b.cure(podA))
	r := b.heal(volume)
	if r.Verdict() != healer.Healed || outcomes(r) != "rebind" || len(r.Before.Conditions) != 1 {
		t.Errorf("%s: %+v", r.Verdict(), r)
	}
	if len(b.notes.before) != 1 || len(b.notes.after) != 1 || b.notes.after[0].Outcome != "done" || b.notes.before[0].Outcome != "" {
		t.Errorf("audit %+v, %+v", b.notes.before, b.notes.after)
	}
	if !slices.Equal(b.notes.left, []error{nil}) {
		t.Errorf("the permit ended with %v", b.notes.left)
	}
}

func TestStepThatDoesNotHelp(t *testing.T) {
	for name, stepErr := range map[string]error{"no error": nil, "an error": errors.New("move_mount: no")} {
		b := newFixture(t)
		b.healthy()
		b.fall(podA, healer.NotMounted)
		runs := 0
		b.offer("rebind", podA, healer.Rebind, func() error { runs++; return stepErr })
		r := b.heal(volume)
		if r.Verdict() != healer.Abnormal || runs != 1 || len(r.Steps) != 1 || !errors.Is(r.Steps[0].Err, stepErr) {
			t.Errorf("%s: %s after %d runs, %+v", name, r.Verdict(), runs, r.Steps)
		}
		if done := b.notes.after[0].Outcome == "done"; done != (stepErr == nil) {
			t.Errorf("%s: audited as %q", name, b.notes.after[0].Outcome)
		}
	}
}

func TestLeastInvasiveFirstAndEachOnce(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	nothing := func() error { return nil }
	b.offer("restage", podA, healer.Restage, b.cure(podA))
	b.offer("reconnect", podA, healer.Reconnect, nothing)
	b.offer("rebind", podA, healer.Rebind, nothing)
	b.offer("replace", podA, healer.Replace, nothing)
	r := b.heal(volume)
	if got := outcomes(r); got != "rebind replace reconnect restage" || r.Verdict() != healer.Healed {
		t.Errorf("%s, %s", got, r.Verdict())
	}
}

func TestOnlyStepsThatAreNeeded(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.IOError)
	b.offer("for another reason", podA, healer.Rebind, b.cure(podA))
	b.offer("at another mount point", staging, healer.Rebind, b.cure(podA))
	if r := b.heal(volume); len(r.Steps) != 0 || r.Verdict() != healer.Abnormal {
		t.Errorf("ran %q", outcomes(r))
	}
}

func TestNotAcuteIsNotActedUpon(t *testing.T) {
	ran := false
	calm := provider{"calm", func(healer.Case) (healer.Finding, error) {
		return healer.Finding{
			Mine: true, Conditions: []healer.Condition{{Reason: healer.NotMounted, MountPoint: podA}},
			Steps: []healer.Step{{Name: "s", MountPoint: healer.MountPoint{Path: podA}, Heals: []healer.Reason{healer.NotMounted}, Source: disk, Run: func(context.Context, func(context.Context) error) error {
				ran = true
				return nil
			}}},
		}, nil
	}}
	b := newFixture(t, func(c *Config) { c.Providers = []healer.Provider{calm} })
	if r := b.heal(volume); ran || r.Verdict() != healer.Abnormal {
		t.Errorf("ran: %v, %s", ran, r.Verdict())
	}
}

func TestWhatKeepsAStepFromRunning(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		spoil  func(*fixture)
		why    string
		rule   healer.Rule
	}{
		"its provider":      {spoil: func(b *fixture) { b.steps[0].Refused = "too early" }, why: "too early", rule: healer.RuleProvider},
		"the gate":          {spoil: func(b *fixture) { b.notes.refuse = healer.RefusedBy(healer.RuleWanted, errors.New("it is not wanted")) }, why: "it is not wanted", rule: healer.RuleWanted},
		"the mode":          {change: func(c *Config) { c.CheckOnly = true }, why: "--mode=check", rule: healer.RuleMode},
		"a dry run":         {change: func(c *Config) { c.DryRun = true }, why: "--dry-run", rule: healer.RuleMode},
		"identity":          {spoil: func(b *fixture) { setSerial(b, "other") }, why: "identity not proven: serial number", rule: healer.RuleIdentity},
		"a WWID read anew":  {spoil: func(b *fixture) { diskReplaced(b, func(d *facts.BlockDevice) { d.Identity.WWID = "wwid-2" }) }, why: "identity not proven: WWID", rule: healer.RuleIdentity},
		"nothing read anew": {spoil: func(b *fixture) { diskReplaced(b, func(d *facts.BlockDevice) { d.Identity = facts.Identity{} }) }, why: "identity not proven: no serial number", rule: healer.RuleIdentity},
		"another disk without a name": {spoil: func(b *fixture) {
			unnamed(b)
			diskReplaced(b, func(d *facts.BlockDevice) { d.DiskSeq++ })
		}, why: "identity not proven: only the filesystem UUID", rule: healer.RuleIdentity},
		"no known filesystem": {spoil: func(b *fixture) { b.steps[0].Source.Minor = 99 }, why: "identity not proven", rule: healer.RuleIdentity},
		"never seen healthy":  {spoil: func(b *fixture) { clear(b.notes.records) }, why: "never seen healthy", rule: healer.RuleIdentity},
		"shutdown":            {spoil: func(b *fixture) { b.engine.closing = true }, why: "shutting down", rule: healer.RuleShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			if tc.change != nil {
				b = newFixture(t, tc.change)
			}
			b.healthy()
			b.fall(podA, healer.NotMounted)
			ran := false
			b.offer("rebind", podA, healer.Rebind, func() error { ran = true; return nil })
			if name == "shutdown" {
				// The work began before.
				b.onLook = func(hostQuestion) error { b.engine.mu.Lock(); tc.spoil(b); b.engine.mu.Unlock(); return nil }
			} else if tc.spoil != nil {
				tc.spoil(b)
			}
			r := b.heal(volume)
			if ran || len(b.notes.before) != 0 || r.Verdict() != healer.Abnormal || len(r.Steps) != 0 {
				t.Errorf("ran: %v, audited %v, %s", ran, b.notes.before, r.Verdict())
			}
			if len(r.Refused) != 1 || r.Refused[0].Step != "rebind" || r.Refused[0].MountPoint != podA || r.Refused[0].Rule != tc.rule || !strings.Contains(r.Refused[0].Why, tc.why) {
				t.Errorf("refusals %+v, want one of %s with %q", r.Refused, tc.rule, tc.why)
			}
		})
	}
}

// diskReplaced has the disk replaced under its number after a volume was observed.
func diskReplaced(b *fixture, change func(*facts.BlockDevice)) {
	b.examined = func() {
		d := b.devices[disk]
		change(&d)
		b.devices[disk] = d
	}
}

// unnamed has a disk recorded that only its sequence number tells from a clone.
func unnamed(b *fixture) {
	d := b.devices[disk]
	d.Identity.Serial, d.Identity.WWID = "", ""
	b.devices[disk] = d
	info := b.files[staging]
	info.VolData = nil
	b.files[staging] = info
	b.recover(podA)
	b.healthy()
	b.fall(podA, healer.NotMounted)
}

func setSerial(b *fixture, serial string) {
	d := b.devices[disk]
	d.Identity.Serial, d.DiskSeq = serial, d.DiskSeq+1
	b.devices[disk] = d
}

// NFS and btrfs share one superblock among volumes: one is healed at a time.
func TestSuperblockIsHealedForOneVolumeAtATime(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, b.cure(podA))
	occupy(b, key{superblock: disk})
	mustBe(t, b, volume, healer.KindBusy, "running since")
	if len(b.notes.before) != 0 || b.notes.entered != 0 {
		t.Errorf("audited %v", b.notes.before)
	}
	// A check changes nothing, and asks no gate.
	b.recover(podA)
	b.healthy()
}

// occupy lets another call hold a key until the test ends.
func occupy(b *fixture, k key) {
	if _, err := b.engine.locks.lock(false, k); err != nil {
		b.t.Fatal(err)
	}
}

func TestRefusedStepGivesWayToTheNext(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.offer("rebind", podA, healer.Rebind, nil)
	b.steps[0].Refused = "too early"
	b.offer("replace", podA, healer.Replace, b.cure(podA))
	if r := b.heal(volume); r.Verdict() != healer.Healed || outcomes(r) != "replace" {
		t.Errorf("%s, %s", r.Verdict(), outcomes(r))
	}
}

func TestNothingRunsWithoutAnAuditLine(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.notes.broken = syscall.EROFS // of the node's disk, and not of the volume
	ran := false
	b.offer("rebind", podA, healer.Rebind, func() error { ran = true; return nil })
	r := b.heal(volume)
	if ran || r.Verdict() != healer.Abnormal || len(r.Steps) != 1 || !errors.Is(r.Steps[0].Err, b.notes.broken) {
		t.Errorf("ran: %v, %+v", ran, r.Steps)
	}
	if c := healer.Classify(r.Steps[0].Err); c.Tier == api.Terminal {
		t.Errorf("it counts as %s, and nobody would try again once the log can be written", c)
	}
	if len(b.notes.left) != b.notes.entered {
		t.Error("the permit is kept")
	}
}

func TestStepsSeeTheirPermit(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.notes.revalidate = errors.New("the pod is gone")
	b.steps = []healer.Step{{
		Name: "rebind", MountPoint: healer.MountPoint{Path: podA}, Heals: []healer.Reason{healer.NotMounted}, Source: disk,
		Run: func(ctx context.Context, revalidate func(context.Context) error) error { return revalidate(ctx) },
	}}
	r := b.heal(volume)
	if len(r.Steps) != 1 || !errors.Is(r.Steps[0].Err, b.notes.revalidate) || !errors.Is(b.notes.left[0], b.notes.revalidate) {
		t.Errorf("%+v, permit left with %v", r.Steps, b.notes.left)
	}
}

// However many mount points a volume has, the report says how they are after the last
// step.
func TestManyMountPointsAreAllHealed(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	const n = 40
	for i := range n {
		mountPoint := fmt.Sprintf("/k/pods/uid-%d/volumes/kubernetes.io~csi/pv1/mount", i)
		b.fall(mountPoint, healer.NotMounted)
		b.offer("rebind", mountPoint, healer.Rebind, b.cure(mountPoint))
	}
	r := b.heal(volume)
	if len(r.After.Conditions) != n-len(r.Steps) {
		t.Errorf("%d of %d mount points are healed, and the report still has %d conditions", len(r.Steps), n, len(r.After.Conditions))
	}
	if len(r.Steps) != n || r.Verdict() != healer.Healed {
		t.Errorf("%s after %d of %d steps", r.Verdict(), len(r.Steps), n)
	}
}
