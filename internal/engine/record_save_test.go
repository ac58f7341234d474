package engine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestRecordOfAHealthyVolume(t *testing.T) {
	b := newFixture(t)
	b.change(podA, func(m *facts.Mount) { m.Attr, m.Propagation = facts.AttrReadOnly, facts.Propagation{Shared: 9} })
	b.healthy()
	got, _ := b.notes.Load(driver, volID)
	if got == nil || time.Since(got.LastSeen) > time.Minute {
		t.Fatalf("%+v", got)
	}
	got.LastSeen = time.Time{}
	want := healer.Record{
		Newest:  102,
		Version: healer.RecordVersion, Driver: driver, VolumeID: volID, BootID: "boot-1", FSType: "ext4", Source: "/dev/sdb", DiskSeq: 5,
		Identity: facts.Identity{FilesystemUUID: "uuid-1", Serial: "serial-1", WWID: "wwid-1", Size: 1 << 30},
		MountPoints: []healer.MountPointRecord{
			{Role: healer.RoleTarget, Path: podA, Root: "/", Dev: disk, MountID: 102, Attr: facts.AttrReadOnly, Propagation: facts.Propagation{Shared: 9}},
			{Role: healer.RoleStaging, Path: staging, Root: "/", Dev: disk, MountID: 101},
		},
	}
	if got.MountPoints[0].Role == healer.RoleStaging { // no order is promised
		want.MountPoints[0], want.MountPoints[1] = want.MountPoints[1], want.MountPoints[0]
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
}

// Where nothing is staged, each pod's mount may name another server.
func TestRecordHasTheSourceOfEachMount(t *testing.T) {
	b := newFixture(t)
	b.unmount(staging)
	b.publish(podB)
	sources := map[string]string{podA: "10.0.0.1@tcp:/fs", podB: "10.0.0.2@tcp:/fs"}
	for at, source := range sources {
		b.change(at, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = export, "lustre", source })
	}
	b.answers[export] = goodSight
	b.healthy()
	for _, p := range b.record().MountPoints {
		if p.Source != sources[p.Path] {
			t.Errorf("%s: %q", p.Path, p.Source)
		}
	}
}

// All mounts of a Lustre have one number, and one superblock in a case, that of the mount probed first.
func TestRecordHasTheSourceOfTheStagedMount(t *testing.T) {
	b := newFixture(t)
	for at, source := range map[string]string{podA: "10.0.0.1@tcp:/fs/pod", staging: "10.0.0.1@tcp:/fs"} {
		b.change(at, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = export, "lustre", source })
	}
	b.answers[export] = goodSight
	b.healthy()
	if got := b.record().Source; got != "10.0.0.1@tcp:/fs" {
		t.Errorf("%q", got)
	}
}

// A caller that says reader only gets no complaint of a filesystem that turned read-only. The loop,
// which has no such word, must not take it for meant from then on.
func TestRecordHasNoCallersReadOnly(t *testing.T) {
	reads := volume
	reads.Capability = &healer.Capability{Access: healer.AccessMount, ReadOnly: true}
	for name, before := range map[string]func(*fixture){"seen writable": (*fixture).healthy, "never seen": func(*fixture) {}, "a tmpfs": func(*fixture) {}} {
		b := newFixture(t)
		before(b)
		for _, path := range []string{podA, staging} {
			b.change(path, func(m *facts.Mount) { m.SuperReadOnly = true })
			if name == "a tmpfs" {
				b.change(path, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = export, "tmpfs", "tmpfs" })
			}
		}
		b.answers[export] = goodSight
		b.heal(reads)
		r, _ := b.notes.Load(driver, volID)
		for _, p := range r.MountPoints {
			if p.ReadOnlySuper {
				t.Errorf("%s: %s is recorded as read-only", name, p.Path)
			}
		}
	}
}

// What the API says of a volume is no caller's word: while it does not answer, the record says it.
func TestRecordOfAVolumeForReaders(t *testing.T) {
	b := newFixture(t)
	b.notes.readersOnly = true
	for _, path := range []string{podA, staging} {
		b.change(path, func(m *facts.Mount) { m.SuperReadOnly = true })
	}
	b.healthy()
	for _, p := range b.record().MountPoints {
		if !p.ReadOnlySuper {
			t.Errorf("%s is recorded as writable", p.Path)
		}
	}
}

func TestRecordIsWrittenOnChangeAndHourly(t *testing.T) {
	k := volumeKey(driver, volID)
	for name, tc := range map[string]struct {
		change func(*fixture)
		saves  int
	}{
		"nothing changed": {func(*fixture) {}, 1},
		"almost an hour":  {func(b *fixture) { age(b, k, 58*time.Minute) }, 1},
		"an hour":         {func(b *fixture) { age(b, k, time.Hour) }, 2},
		"from the future": {func(b *fixture) { age(b, k, -time.Hour) }, 2},
		"other options":   {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.Attr = facts.AttrNoExec }) }, 2},
		"a device grown": {func(b *fixture) {
			d := b.devices[disk]
			d.Identity.Size *= 2
			b.devices[disk] = d
		}, 2},
		"another pod": {func(b *fixture) { b.publish(podB) }, 2},
	} {
		b := newFixture(t)
		b.healthy()
		tc.change(b)
		b.healthy()
		if b.notes.saves != tc.saves {
			t.Errorf("%s: %d saves, want %d", name, b.notes.saves, tc.saves)
		}
	}
}

// remount replaces the mounts of the volume by those of another device.
func (b *fixture) remount(dev facts.Dev) {
	for _, path := range []string{staging, podA} {
		b.unmount(path)
		b.mount(path, dev)
	}
	b.devices[dev] = b.devices[disk]
}

// pausedCheck begins a check that stops when its case is examined, until finish is called.
func (b *fixture) pausedCheck() (finish func()) {
	seen, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.fakeProvider.mu.Lock()
	b.examined = func() {
		b.examined = nil
		b.fakeProvider.mu.Unlock()
		close(seen)
		<-goOn
		b.fakeProvider.mu.Lock()
	}
	b.fakeProvider.mu.Unlock()
	go func() {
		defer close(done)
		b.check()
	}()
	<-seen
	return func() { close(goOn); <-done }
}

func (b *fixture) check() {
	if _, err := b.engine.Check(b.t.Context(), volume); err != nil {
		b.t.Error(err)
	}
}

// loading calls before before a record is loaded, once.
type loading struct {
	Records

	before func()
}

func (l *loading) Load(driver, id string) (*healer.Record, error) {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	return l.Records.Load(driver, id)
}

// A check saves nothing where another one saved since it began: else the id of newer mounts would stand beside
// the superblock that was there before. The next check saves again.
func TestCheckSavesNothingOverAnother(t *testing.T) {
	next := facts.Dev{Major: 8, Minor: 32}
	another := facts.Mount{ID: 5000, OldID: 5000, OldParent: 1, Path: "/other", Root: "/", FSType: "ext4"}
	for name, checks := range map[string]func(*fixture, *loading){
		"the one that began first ends last": func(b *fixture, _ *loading) {
			first := b.pausedCheck()
			b.remount(next)
			b.check()
			first()
		},
		"the one that began first loads the record last": func(b *fixture, l *loading) {
			l.before = func() { b.remount(next); b.check() }
			b.check()
		},
		"the one that began last finds its record unchanged": func(b *fixture, _ *loading) {
			before := slices.Clone(b.mounts)
			b.remount(next)
			first := b.pausedCheck()
			another.Dev = next
			b.mounts = append(before, another)
			last := b.pausedCheck()
			first()
			last()
		},
		"the one that began last ends a restage": func(b *fixture, _ *loading) {
			r := b.record()
			r.Restaging = true
			_ = b.notes.Save(r)
			b.remount(next)
			first := b.pausedCheck()
			last := b.pausedCheck()
			first()
			b.fall(podA, healer.NotMounted)
			last()
			b.recover(podA)
		},
	} {
		var l *loading
		b := newFixture(t, func(c *Config) { l = &loading{Records: c.Records}; c.Records = l })
		b.healthy()
		age(b, volumeKey(driver, volID), 2*time.Hour)
		checks(b, l)
		r, err := b.engine.read(driver, volID)
		if err != nil || !r.HasDev(next) || r.HasDev(disk) || r.NewestOf(next) >= another.ID {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		last := facts.Dev{Major: 8, Minor: 48}
		b.remount(last)
		b.check()
		if r := b.record(); !r.HasDev(last) {
			t.Errorf("%s: the next check saved nothing: %+v", name, r.MountPoints)
		}
	}
}

// What a step saves keeps nobody from saving what the same call proves afterwards.
func TestHealedVolumeIsRecorded(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	next := facts.Dev{Major: 8, Minor: 32}
	b.fall(podA, healer.NotMounted)
	b.offer("restage", podA, healer.Restage, func() error { b.remount(next); return b.cure(podA)() })
	b.steps[0].MountPoint = b.last().MountPoints[0]
	saves := b.notes.saves
	b.heal(volume)
	if r := b.record(); b.notes.saves < saves+2 || !r.HasDev(next) || r.Restaging {
		t.Errorf("%d saves, %+v", b.notes.saves-saves, r)
	}
}

// When a check saves while another one loads the record, that one may have the older record.
func TestLastSeenIsThatOfTheRecord(t *testing.T) {
	var l *loading
	b := newFixture(t, func(c *Config) { l = &loading{Records: c.Records}; c.Records = l })
	b.healthy()
	before := b.engine.scanned.get(volumeKey(driver, volID)).healthy
	l.before = b.check
	b.check()
	if got := b.last().LastSeen; got != before {
		t.Errorf("%s, the record is of %s", got, before)
	}
}

// What a container has is proven by the time at which the record was true: for FUSE
// that has to be on the disk soon, and in memory at once.
func TestRecordOfFUSEIsKeptYoung(t *testing.T) {
	for name, tc := range map[string]struct {
		age   time.Duration
		saves int
	}{"young": {4 * time.Minute, 1}, "old": {recordIntervalFUSE, 2}} {
		b := newFUSEBench(t)
		k := volumeKey(driver, volID)
		age(b, k, tc.age)
		b.mounts = append(b.mounts, facts.Mount{ID: 20000, OldID: 20000, OldParent: 1, Path: "/later", Root: "/", Dev: facts.Dev{Minor: 34}})
		b.healthy()
		r := b.notes.records[k]
		known, err := b.engine.read(driver, volID)
		if err != nil || b.notes.saves != tc.saves || known.Newest != 20000 || (r.Newest == 20000) != (tc.saves == 2) {
			t.Errorf("%s: %d saves, %d in the record, known %+v, %v", name, b.notes.saves, r.Newest, known, err)
		}
	}
}

// A check proves what was mounted until then of its own volume, and in its own boot only.
func TestNewestOfARecord(t *testing.T) {
	b := newFixture(t)
	healthy := func(v *scannedVolume) { v.newest = 700 }
	for name, tc := range map[string]struct {
		boot string
		seen key
		want uint64
	}{
		"healthy since":      {"boot-1", volumeKey(driver, "healthy since"), 700},
		"another volume":     {"boot-1", volumeKey(driver, "another"), 699},
		"of an earlier boot": {"boot-0", volumeKey(driver, "of an earlier boot"), 699},
		"another driver":     {"boot-1", volumeKey("another.driver", "another driver"), 699},
	} {
		if err := b.notes.Save(healer.Record{Driver: driver, VolumeID: name, BootID: tc.boot, Newest: 699}); err != nil {
			t.Fatal(err)
		}
		b.engine.scanned.change(tc.seen, healthy)
		if r, err := b.engine.read(driver, name); err != nil || r.Newest != tc.want || b.notes.records[volumeKey(driver, name)].Newest != 699 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// A record that could not be written is not known to be true.
func TestUnwrittenRecordProvesNothing(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Records = unwritable{c.Records} })
	b.serve(previously)
	b.healthy()
	if n := b.engine.scanned.get(volumeKey(driver, volID)).newest; n != 0 {
		t.Errorf("%d", n)
	}
}

func age(b *fixture, k key, by time.Duration) {
	r := b.notes.records[k]
	r.LastSeen = r.LastSeen.Add(-by)
	b.notes.records[k] = r
}

// Counts of errors live on the disk: what a healthy volume had is no news.
func TestRecordHasTheErrorsOfTheStagedFilesystem(t *testing.T) {
	old := &facts.FilesystemErrors{Count: 7, LastTime: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		change func(*fixture)
		want   uint64
	}{
		"none":               {func(*fixture) {}, 0},
		"old ones":           {func(b *fixture) { b.errors = old }, 7},
		"beneath an overlay": {func(b *fixture) { b.errors = old; overUpper(func(*facts.Mount) {})(b) }, 7},
		"nothing is staged":  {func(b *fixture) { b.errors = old; b.unmount(staging) }, 7},
		"checked in the meantime": {func(b *fixture) {
			b.errors = old
			b.healthy()
			b.errors = &facts.FilesystemErrors{}
		}, 0},
	} {
		b := newFixture(t)
		tc.change(b)
		b.healthy()
		if r, _ := b.notes.Load(driver, volID); r == nil || r.FilesystemErrors != tc.want {
			t.Errorf("%s: %+v, want %d", name, r, tc.want)
		}
	}
}

// What was never there is not used up: only a volume that was seen with space can
// run out of it.
func TestRecordKnowsWhetherThereWasSpace(t *testing.T) {
	b := newFixture(t)
	see := func(space facts.Space) {
		sight := b.answers[disk]
		sight.Space = space
		b.answers[disk] = sight
		b.healthy()
	}
	expect := func(when string, blocks, inodes bool) {
		t.Helper()
		r, _ := b.notes.Load(driver, volID)
		for _, p := range r.MountPoints {
			if p.HadBlocks != blocks || p.HadInodes != inodes {
				t.Errorf("%s: %+v", when, p)
			}
		}
	}
	see(facts.Space{Blocks: 10, Files: 10})
	expect("seen full", false, false)
	see(facts.Space{Blocks: 10, Available: 1, Files: 10})
	expect("seen with blocks", true, false)
	see(facts.Space{Blocks: 10, Files: 10, FreeFiles: 1})
	expect("seen with both, one after the other", true, true)
}

// degraded makes a call for a volume that works, with something wrong.
func (b *fixture) degraded(r healer.Reason) {
	b.t.Helper()
	b.fall(podA, r)
	if v := b.heal(volume).Verdict(); v != healer.Abnormal {
		b.t.Fatalf("%s, with %s", v, r)
	}
}

func (b *fixture) record() healer.Record {
	b.t.Helper()
	r, _ := b.notes.Load(driver, volID)
	if r == nil {
		b.t.Fatal("nothing is recorded")
	}
	return *r
}

// What is wrong with a volume that works keeps it from being recorded no more than
// it keeps it from being used.
func TestDegradedVolumeIsRecorded(t *testing.T) {
	b := newFixture(t)
	b.degraded(healer.SlowResponse)
	if r := b.record(); r.Identity.Serial != "serial-1" || len(r.MountPoints) != 2 || r.LastSeen.IsZero() {
		t.Errorf("%+v", r)
	}
	b.publish(podB)
	b.unmount(podA)
	b.mount(podA, disk)
	id := b.mounts[len(b.mounts)-1].ID
	b.degraded(healer.SlowResponse)
	if r := b.record(); r.MountPoint(podB) == nil || r.MountPoint(podA).MountID != id {
		t.Errorf("%+v", r)
	}
	saves := b.notes.saves
	b.degraded(healer.SlowResponse)
	if b.notes.saves != saves {
		t.Error("the same was recorded again")
	}
}

func TestWhatIsNotRecorded(t *testing.T) {
	for name, sicken := range map[string]func(*fixture){
		"no answer":                  func(b *fixture) { b.fall(podA, healer.NotResponding) },
		"another filesystem":         func(b *fixture) { b.fall(podA, healer.WrongVolumeMounted) },
		"a provider that cannot say": func(b *fixture) { b.err = errors.New("broken"); b.fall(podA, healer.SlowResponse) },
		"one of several conditions":  func(b *fixture) { b.fall(podA, healer.SlowResponse); b.fall(staging, healer.IOError) },
	} {
		b := newFixture(t)
		sicken(b)
		b.heal(volume)
		if b.notes.saves != 0 {
			t.Errorf("%s: %+v", name, b.notes.records)
		}
	}
	ambiguous := provider{"ambiguous", func(healer.Case) (healer.Finding, error) {
		return healer.Finding{Mine: true, Conditions: []healer.Condition{{Status: healer.Degraded, Reason: healer.StackedMounts, Ambiguous: true}}}, nil
	}}
	b := newFixture(t, func(c *Config) { c.Providers = []healer.Provider{ambiguous} })
	b.heal(volume)
	if b.notes.saves != 0 {
		t.Errorf("recorded although it is ambiguous which storage it is: %+v", b.notes.records)
	}
}

// What a volume is compared with stays as long as anything is wrong: else it would
// be called healthy at the next look.
func TestDegradedVolumeKeepsItsBaselines(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	was := b.record()
	b.errors = &facts.FilesystemErrors{Count: 7, LastTime: time.Now()}
	d := b.devices[disk]
	d.Identity.Size *= 2
	b.devices[disk] = d
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.Attr, m.SuperReadOnly = facts.AttrReadOnly, true })
	}
	sight := b.answers[disk]
	sight.Space = facts.Space{Blocks: 1, Available: 1}
	b.answers[disk] = sight
	b.publish(podB) // so that there is something to record
	b.change(podB, func(m *facts.Mount) { m.SuperReadOnly = true })
	b.degraded(healer.FilesystemErrors)
	now := b.record()
	if now.FilesystemErrors != 0 || now.Identity != was.Identity ||
		*now.MountPoint(podA) != *was.MountPoint(podA) || *now.MountPoint(staging) != *was.MountPoint(staging) {
		t.Errorf("%+v\nwas %+v", now, was)
	}
	if p := now.MountPoint(podB); p == nil || p.ReadOnlySuper {
		t.Errorf("the new mount point: %+v", p)
	}
	b.recover(podA)
	b.healthy()
	if now = b.record(); now.FilesystemErrors != 7 || now.Identity.Size != 2<<30 || now.MountPoint(podA).Attr != facts.AttrReadOnly || !now.MountPoint(podA).ReadOnlySuper {
		t.Errorf("well again: %+v", now)
	}
}

// Without a record the errors of this boot are news, and stay so.
func TestErrorsAtFirstCheckAreNoBaseline(t *testing.T) {
	for name, tc := range map[string]struct {
		last time.Time
		want uint64
	}{"of this boot": {time.Now(), 0}, "of an earlier one": {time.Unix(1, 0), 7}} {
		b := newFixture(t)
		b.errors = &facts.FilesystemErrors{Count: 7, LastTime: tc.last}
		b.degraded(healer.SlowResponse)
		if r := b.record(); r.FilesystemErrors != tc.want {
			t.Errorf("%s: %d", name, r.FilesystemErrors)
		}
	}
}

// mountedNow is a mount point whose mount came instead of another one just now, but
// for the time.
func mountedNow(p *healer.MountPointRecord) healer.MountPointRecord {
	now := *p
	if node.SinceBoot()-now.Since < time.Minute {
		now.Since, now.Away = 0, 0
	}
	return now
}

// What an interrupted step left is not how a mount point is to be.
func TestPlaceholderIsNotRecorded(t *testing.T) {
	const placeholder = facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoSymFollow
	put := func(b *fixture) {
		b.change(podA, func(m *facts.Mount) { m.Attr, m.Propagation, m.ID = placeholder, facts.Propagation{}, 999 })
	}
	b := newFixture(t)
	put(b)
	b.degraded(healer.ReadOnlyFilesystem)
	if r := b.record(); r.MountPoint(podA) != nil || r.MountPoint(staging) == nil {
		t.Errorf("at first sight: %+v", r)
	}
	b = newFixture(t)
	b.change(podA, func(m *facts.Mount) { m.Propagation = facts.Propagation{Shared: 9} })
	b.healthy()
	was := b.record()
	put(b)
	b.publish(podB)
	b.degraded(healer.ReadOnlyFilesystem)
	want := *was.MountPoint(podA)
	want.MountID = 999 // of the filesystem instance that is staged now
	if r := b.record(); mountedNow(r.MountPoint(podA)) != want || r.MountPoint(podB) == nil {
		t.Errorf("after it was healthy: %+v", r)
	}
	// How a subPath was mounted is noted before it is replaced, and has to stay until
	// it is done.
	at := "/k/pods/uid-a/volume-subpaths/pv1/c/0"
	noted := healer.MountPointRecord{Role: healer.RoleTarget, Path: at, Root: "/dir", Attr: facts.AttrNoExec, Propagation: facts.Propagation{Shared: 7}, Dev: facts.Dev{Minor: 99}}
	k := volumeKey(driver, volID)
	r := b.notes.records[k]
	r.MountPoints = append(r.MountPoints, noted)
	b.notes.records[k] = r
	b.publish(at)
	b.change(at, func(m *facts.Mount) { m.Root, m.Attr, m.ID = "/dir", placeholder, 1000 })
	b.degraded(healer.ReadOnlyFilesystem)
	noted.Dev, noted.MountID = disk, 1000
	if r := b.record(); r.MountPoint(at) == nil || mountedNow(r.MountPoint(at)) != noted {
		t.Errorf("a subPath: %+v", r)
	}
	b.change(at, func(m *facts.Mount) { m.Attr = facts.AttrNoExec })
	b.degraded(healer.SlowResponse)
	if r := b.record(); r.MountPoint(at) != nil {
		t.Errorf("a subPath that is done: %+v", r)
	}
}

// A device of which sysfs told nothing this time takes nothing from the record.
func TestUnknownDeviceIsNotRecorded(t *testing.T) {
	b := newFixture(t)
	sdb := b.devices[disk]
	b.devices[disk] = facts.BlockDevice{Dev: disk}
	b.healthy()
	if r, _ := b.notes.Load(driver, volID); r != nil {
		t.Errorf("recorded without an identity: %+v", r)
	}
	b.devices[disk] = sdb
	b.healthy()
	b.devices[disk] = facts.BlockDevice{Dev: disk}
	b.publish(podB)
	b.healthy()
	if r, _ := b.notes.Load(driver, volID); r == nil || r.Identity.Serial != "serial-1" {
		t.Errorf("%+v", r)
	}
}

// Two pods use the volume; whichever of them is asked about, nothing changed.
func TestRecordDoesNotDependOnTheCaller(t *testing.T) {
	b := newFixture(t)
	b.publish(podB)
	b.healthy()
	b.heal(healer.Volume{ID: volID, Path: podB, StagingPath: staging})
	b.heal(healer.Volume{ID: volID, Path: podB})
	b.heal(healer.Volume{ID: volID, Path: staging})
	b.healthy()
	if b.notes.saves != 1 {
		t.Errorf("%d saves of one state", b.notes.saves)
	}
}

// A part of the record that same forgets would never be written.
func TestSameKnowsEveryField(t *testing.T) {
	typ := reflect.TypeFor[healer.Record]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		if name == "LastSeen" || name == "Newest" || name == "RestagingSince" {
			continue // of when, not of what
		}
		changed := healer.Record{MountPoints: []healer.MountPointRecord{{}}}
		field := reflect.ValueOf(&changed).Elem().Field(i)
		switch field.Kind() {
		case reflect.String:
			field.SetString("x")
		case reflect.Int:
			field.SetInt(1)
		case reflect.Uint64:
			field.SetUint(1)
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Struct:
			if first := field.Field(0); first.CanInt() {
				first.SetInt(1)
			} else {
				first.SetString("x")
			}
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 2, 2))
		default:
			t.Fatalf("%s is of a kind that this test does not know", name)
		}
		if changed.Same(healer.Record{MountPoints: []healer.MountPointRecord{{}}}) {
			t.Errorf("another %s is the same record", name)
		}
	}
}

// A mount point that nobody looks at keeps its options after a boot, and not its device number,
// which another volume may have by now.
func TestDormantMountPointsOfAnEarlierBoot(t *testing.T) {
	dormant := healer.MountPointRecord{Path: podB, Role: healer.RoleTarget, Dev: dev(1), MountID: 7, Attr: facts.AttrNoSUID}
	c := healer.Case{BootID: "b", Record: &healer.Record{BootID: "a"}, Dormant: []healer.MountPointRecord{dormant}}
	if r := newRecord(c); r.HasDev(dev(1)) || r.MountPoint(podB).MountID != 0 || r.MountPoint(podB).Attr != facts.AttrNoSUID {
		t.Errorf("%+v", r.MountPoints)
	}
}

// Nor does its device number in this boot, once the volume has that superblock nowhere, prove what was mounted later:
// while nobody looks at the mount point, another volume may get the number, and the record's highest id rises.
func TestDormantMountPointsWhoseSuperblockIsGone(t *testing.T) {
	dormant := healer.MountPointRecord{Path: podB, Role: healer.RoleTarget, Dev: dev(1), MountID: 7}
	at := func(dev facts.Dev) []healer.MountPoint {
		m := facts.Mount{ID: 8, Path: podA, Dev: dev, FSType: fuseType}
		return []healer.MountPoint{{Role: healer.RoleTarget, Path: podA, Proven: true, Stack: []facts.Mount{m}}}
	}
	c := healer.Case{
		BootID: "b", Newest: 90, MountPoints: at(dev(1)), Superblocks: map[facts.Dev]healer.Superblock{},
		Record: &healer.Record{BootID: "b", Newest: 50, MountPoints: []healer.MountPointRecord{dormant}},
	}
	for i, step := range []struct {
		on     facts.Dev
		newest uint64 // of the number that the dormant mount point has
		// previous is how many instances containers that cannot be inspected may still have.
		previous int
	}{{dev(1), 90, 0}, {dev(2), 90, 1}, {dev(2), 90, 1}, {dev(1), 93, 1}} {
		c.MountPoints, c.Dormant, c.Newest = at(step.on), []healer.MountPointRecord{*c.Record.MountPoint(podB)}, uint64(90+i)
		r := newRecord(c)
		if r.NewestOf(dev(1)) != step.newest || r.NewestOf(dev(3)) != 0 || r.Newest != c.Newest {
			t.Errorf("check %d: %d: %+v", i, r.NewestOf(dev(1)), r)
		}
		if len(r.Previous) != step.previous {
			t.Errorf("check %d: previous %+v", i, r.Previous)
		}
		c.Record = &r
	}
}

// onceUnreadable fails to load a record while fails is true.
type onceUnreadable struct {
	Records

	fails bool
}

func (l *onceUnreadable) Load(driver, id string) (*healer.Record, error) {
	if l.fails {
		return nil, fmt.Errorf("record: %w", syscall.EMFILE)
	}
	return l.Records.Load(driver, id)
}

// A record that cannot be read for a moment is there nevertheless.
func TestUnreadableRecordIsNotOverwritten(t *testing.T) {
	var l *onceUnreadable
	b := newFixture(t, func(c *Config) { l = &onceUnreadable{Records: c.Records}; c.Records = l })
	b.healthy()
	was := b.record()
	another := facts.Dev{Major: 8, Minor: 32}
	b.remount(another) // another volume's disk
	d := b.devices[another]
	d.Identity = facts.Identity{Serial: "another", FilesystemUUID: "another"}
	b.devices[another] = d
	l.fails = true
	b.check()
	l.fails = false
	if now := b.record(); now.Identity != was.Identity {
		t.Errorf("the identity was %+v, and now %+v", was.Identity, now.Identity)
	}
}

// A check that finds its record unchanged raises the newest mount id: one that began before it writes nothing.
func TestOlderCheckAfterAnUnchangedRecord(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	next := facts.Dev{Major: 8, Minor: 32}
	before := append([]facts.Mount(nil), b.mounts...)
	b.remount(next)
	first := b.pausedCheck() // has seen next, and would write it
	b.mounts = append(before, facts.Mount{ID: 5000, OldID: 5000, OldParent: 1, Path: "/other", Root: "/", Dev: next, FSType: "ext4"})
	b.check() // sees what is recorded, and newer ids
	first()
	if r, err := b.engine.read(driver, volID); err != nil || r.HasDev(next) && r.NewestOf(next) >= 5000 {
		t.Errorf("%+v, %v", r, err)
	}
}
