package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// mountPointsOf names the mount points of the last case that was examined.
func mountPointsOf(b *fixture) []string {
	var paths []string
	for _, p := range b.last().MountPoints {
		paths = append(paths, p.Path)
	}
	return paths
}

func TestHealthyVolumeIsAskedOnce(t *testing.T) {
	b := newFixture(t)
	r := b.heal(volume)
	if b.looks != 1 {
		t.Errorf("%d looks, one filesystem", b.looks)
	}
	c := b.last()
	sb, known := c.Superblocks[disk]
	if !known || sb.Device == nil || sb.Device.Identity.FilesystemUUID != "uuid-1" || sb.Kind != facts.KindDirectory || !sb.Answer.Asked {
		t.Errorf("%+v", sb)
	}
	if c.Driver != driver || r.Driver != driver || c.BootID != "boot-1" || c.Block || c.Record != nil {
		t.Errorf("%+v", c)
	}
	if c.MountPoints[0].Role != healer.RoleTarget || c.MountPoints[0].PodUID != "uid-a" || !c.MountPoints[0].Named || c.MountPoints[1].Role != healer.RoleStaging {
		t.Errorf("%+v", c.MountPoints)
	}
}

// The mount table is not read atomically: a mount may seem absent once.
func TestAbsenceIsBelievedOnlyTwice(t *testing.T) {
	for _, tc := range []struct {
		name   string
		absent func(reading int) bool
		mounts int
	}{
		{"once", func(n int) bool { return n == 1 }, 1},
		{"for good", func(int) bool { return true }, 0},
	} {
		b := newFixture(t)
		all, n := slices.Clone(b.mounts), 0
		b.onMounts = func() {
			n++
			b.mounts = slices.Clone(all)
			if tc.absent(n) {
				b.unmount(podA)
			}
		}
		b.heal(volume)
		p, _ := b.last().MountPoint(podA)
		if len(p.Stack) != tc.mounts || n < 2 {
			t.Errorf("absent %s: %d mounts after %d readings, want %d", tc.name, len(p.Stack), n, tc.mounts)
		}
	}
}

func TestMountsThatMoveAreReadAnew(t *testing.T) {
	b := newFixture(t)
	moves := 2
	b.onLook = func(hostQuestion) error {
		b.fakeNode.mu.Lock()
		defer b.fakeNode.mu.Unlock()
		if moves--; moves >= 0 {
			b.answers[disk] = node.Inspection{Changed: true}
		} else {
			b.answers[disk] = node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}}
		}
		return nil
	}
	if r := b.heal(volume); r.Verdict() != healer.Healthy || !b.last().Superblocks[disk].Answer.Asked {
		t.Errorf("%+v", b.last().Superblocks)
	}
	b.answers[disk] = node.Inspection{Changed: true}
	b.onLook = nil
	if _, err := b.engine.Heal(context.Background(), volume); healer.KindOf(err) != healer.KindUnknown || !errors.Is(err, errMoved) {
		t.Errorf("for ever on the move: %v", err)
	}
}

// A table that moves up to the last reading, which then misses a mount: that
// reading is not believed, and the error says why.
func TestMovesThenAbsence(t *testing.T) {
	b := newFixture(t)
	n := 0
	b.onMounts = func() {
		n++
		b.answers[disk] = node.Inspection{Changed: n < maxObservations}
		if n == maxObservations {
			b.unmount(podA)
		}
	}
	_, err := b.engine.Heal(context.Background(), volume)
	if err != nil && errors.Unwrap(err) == nil {
		t.Errorf("the error names no cause: %v", err)
	}
	if err == nil && n <= maxObservations {
		t.Error("an absence seen once was believed")
	}
}

func TestHungStorageIsAnAnswer(t *testing.T) {
	b := newFixture(t)
	b.answers[disk] = node.Inspection{Answer: facts.Answer{Asked: true, TimedOut: true, Elapsed: time.Second}}
	other := facts.Dev{Major: 0, Minor: 77}
	b.unmount(podA)
	b.mount(podA, other)
	b.heal(volume)
	c := b.last()
	if !c.Superblocks[disk].Answer.TimedOut || c.Superblocks[other].Answer.TimedOut || !c.Superblocks[other].Answer.Asked {
		t.Errorf("%+v", c.Superblocks)
	}
}

func TestProbeThatFailsIsAnError(t *testing.T) {
	b := newFixture(t)
	lost := errors.New("worker lost")
	b.onLook = func(hostQuestion) error { return lost }
	if _, err := b.engine.Heal(context.Background(), volume); healer.KindOf(err) != healer.KindUnknown || !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
}

func TestFactsOfASuperblock(t *testing.T) {
	b := newFixture(t)
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) {
			m.SuperOptions, m.SuperReadOnly = []string{"ro", "shutdown", "emergency_ro"}, true
		})
	}
	b.heal(volume)
	if sb := b.last().Superblocks[disk]; !sb.Shutdown || !sb.EmergencyReadOnly || !sb.ReadOnly {
		t.Errorf("%+v", sb)
	}
}

// btrfs shows an anonymous device number; its source names the device.
func TestDeviceBehindAnAnonymousNumber(t *testing.T) {
	b := newFixture(t)
	anonymous := facts.Dev{Minor: 55}
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.Dev = anonymous })
	}
	b.answers[anonymous] = node.Inspection{Kind: facts.KindDirectory, ProbeFacts: facts.ProbeFacts{Rdev: disk, UUID: "u"}, Answer: facts.Answer{Asked: true}}
	b.heal(volume)
	if d := b.last().Superblocks[anonymous].Device; d == nil || d.Dev != disk || d.Identity.Serial != "serial-1" {
		t.Errorf("%+v", d)
	}
}

// Lustre shows a number with a major one, which is a hash and no device's.
func TestLustreHasNoDevice(t *testing.T) {
	b := newFixture(t)
	hash := facts.Dev{Major: 3069, Minor: 593552}
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = hash, "lustre", "10.0.0.1@tcp:/fs" })
	}
	b.answers[hash] = node.Inspection{Kind: facts.KindDirectory, ProbeFacts: facts.ProbeFacts{UUID: "u"}, Answer: facts.Answer{Asked: true}}
	b.healthy()
	if d := b.last().Superblocks[hash].Device; d != nil {
		t.Errorf("%+v", *d)
	}
	if r := b.record(); r.MountPoints[0].Source == "" {
		t.Error("the record has no source of a mount that nothing else identifies")
	}
}

// The record has when it was written by the wall clock, which may have been set since. What a check of this
// server saw, it knows by a clock that cannot be set.
func TestLastSeenWhereTheClockWasSet(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	seen := b.engine.scanned.get(volumeKey(driver, volID)).healthy
	b.heal(volume) // the fake's boot began so long ago that the record's time is one to come
	if c := b.last(); c.LastSeen != seen {
		t.Errorf("last seen %s after the boot, and not %s; the observation began at %s", c.LastSeen, seen, c.Began)
	}
}
