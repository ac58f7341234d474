package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func dev(minor uint32) facts.Dev { return facts.Dev{Minor: minor} }

// on is a mount point with mounts of these superblocks, top first.
func on(role healer.Role, path string, devs ...facts.Dev) healer.MountPoint {
	p := healer.MountPoint{Role: role, Path: path, Proven: true}
	for _, d := range devs {
		p.Stack = append(p.Stack, facts.Mount{Dev: d, Path: path})
	}
	return p
}

var (
	answered = healer.Superblock{Answer: facts.Answer{Asked: true}}
	disconn  = healer.Superblock{Answer: facts.Answer{Asked: true, Errno: 107}}
)

// recordWith is a record of a boot, with mount points and previous superblocks of these devices.
func recordWith(boot string, mountPoints []facts.Dev, previous ...facts.Dev) *healer.Record {
	r := &healer.Record{BootID: boot}
	for _, d := range mountPoints {
		r.MountPoints = append(r.MountPoints, healer.MountPointRecord{Dev: d})
	}
	for _, d := range previous {
		r.Previous = append(r.Previous, healer.PreviousSuperblock{Dev: d, BootID: boot})
	}
	return r
}

var previousSuperblockCases = map[string]struct {
	mountPoints []healer.MountPoint
	sb          map[facts.Dev]healer.Superblock
	record      *healer.Record
	want        []facts.Dev
}{
	"healthy": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1)), on(healer.RoleStaging, "/s", dev(1))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): answered},
		record:      recordWith("b", []facts.Dev{dev(1)}),
	},
	"a dead mount point": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1)), on(healer.RoleStaging, "/s", dev(2))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): disconn, dev(2): answered},
		want:        []facts.Dev{dev(1)},
	},
	"not asked": {mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1))}, want: []facts.Dev{dev(1)}},
	"silent": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): {Answer: facts.Answer{Asked: true, TimedOut: true}}},
		want:        []facts.Dev{dev(1)},
	},
	"shut down": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): {Shutdown: true, Answer: facts.Answer{Asked: true}}},
		want:        []facts.Dev{dev(1)},
	},
	"beneath the top": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(2), dev(1), dev(3))},
		sb:          map[facts.Dev]healer.Superblock{dev(2): answered},
		want:        []facts.Dev{dev(1), dev(3)},
	},
	"beneath, and works": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(2), dev(1)), on(healer.RoleStaging, "/s", dev(1))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): answered, dev(2): answered},
	},
	"recorded": {
		mountPoints: []healer.MountPoint{on(healer.RoleStaging, "/s", dev(2))},
		sb:          map[facts.Dev]healer.Superblock{dev(2): answered},
		record:      recordWith("b", []facts.Dev{dev(1), dev(2)}),
		want:        []facts.Dev{dev(1)},
	},
	"replaced earlier": {
		mountPoints: []healer.MountPoint{on(healer.RoleStaging, "/s", dev(2))},
		sb:          map[facts.Dev]healer.Superblock{dev(2): answered},
		record:      recordWith("b", nil, dev(3), dev(1)),
		want:        []facts.Dev{dev(1), dev(3)},
	},
	"recorded in an earlier boot": {
		mountPoints: []healer.MountPoint{on(healer.RoleStaging, "/s", dev(2))},
		sb:          map[facts.Dev]healer.Superblock{dev(2): answered},
		record:      recordWith("a", []facts.Dev{dev(1)}, dev(3)),
	},
	"each once": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", dev(1)), on(healer.RoleTarget, "/q", dev(1))},
		sb:          map[facts.Dev]healer.Superblock{dev(1): disconn},
		record:      recordWith("b", []facts.Dev{dev(1)}, dev(1)),
		want:        []facts.Dev{dev(1)},
	},
	"by major, then minor": {
		mountPoints: []healer.MountPoint{on(healer.RoleTarget, "/p", facts.Dev{Major: 8, Minor: 1}), on(healer.RoleTarget, "/q", dev(9))},
		want:        []facts.Dev{dev(9), {Major: 8, Minor: 1}},
	},
	"no number": {record: recordWith("b", []facts.Dev{{}})},
	"nothing":   {},
}

func TestPreviousSuperblocks(t *testing.T) {
	for name, tc := range previousSuperblockCases {
		c := healer.Case{BootID: "b", MountPoints: tc.mountPoints, Superblocks: tc.sb, Record: tc.record}
		if got := previousSuperblocks(c); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// containerMountPoint is a mount point in container n of pod a.
func containerMountPoint(n int, d facts.Dev, proof string) healer.MountPoint {
	m := containerMountOf(n, "uid-a", d)
	m.Mount.Attr = facts.AttrNoSUID
	return healer.MountPoint{
		Role:        healer.RoleContainer,
		Path:        m.Path(),
		Stack:       []facts.Mount{m.Mount},
		InContainer: &healer.InContainer{ContainerMount: m, Proof: proof, Sharing: facts.Sharing(fmt.Sprint(n))},
	}
}

// noted returns the mounts of containers that a replacement of device 1 notes: others each time,
// or what is wanted would change with what is got.
func noted() []healer.PreviousMount {
	return []healer.PreviousMount{
		{ID: 701, Namespace: 5001, Path: "/data", Attr: facts.AttrNoSUID, Sharing: "1"},
		{ID: 702, Namespace: 5002, Path: "/data", Attr: facts.AttrNoSUID, Sharing: "2"},
		{Namespace: 5005, Path: "/data", Attr: facts.AttrNoSUID, Sharing: "5"}, // a kernel without unique ids
	}
}

// replaced returns what a record says of device 1 once it was replaced.
func replaced() healer.PreviousSuperblock {
	return healer.PreviousSuperblock{Dev: dev(1), BootID: "b", Newest: 702, Mounts: noted()}
}

var (
	inOneContainer = containerMountPoint(1, dev(1), "proven")
	// deadNow is the record of a mount point that is dead, and recordedBefore that of when it was healthy.
	deadNow = healer.MountPointRecord{
		Role: healer.RoleTarget, Path: podA, Root: "/sub", Attr: facts.AttrNoExec, Propagation: facts.Propagation{Shared: 3}, Dev: dev(1), MountID: 7,
	}
	recordedBefore = healer.MountPointRecord{Role: healer.RoleTarget, Path: podA, Root: "/"}
)

var recordedReplacements = map[string]struct {
	record      *healer.Record
	change      func(*healer.Step)
	mountPoints []healer.MountPointRecord
	previous    []healer.PreviousSuperblock // nil: nothing is written
}{
	"a mount point of the record": {
		record:      &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{recordedBefore}},
		mountPoints: []healer.MountPointRecord{recordedBefore},
		previous:    []healer.PreviousSuperblock{replaced()},
	},
	"a mount point that is not in it": {
		record:      &healer.Record{BootID: "b"},
		mountPoints: []healer.MountPointRecord{deadNow},
		previous:    []healer.PreviousSuperblock{replaced()},
	},
	"some of it is known": {
		record: &healer.Record{
			BootID:      "b",
			MountPoints: []healer.MountPointRecord{recordedBefore},
			Previous:    []healer.PreviousSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: noted()[:1]}},
		},
		mountPoints: []healer.MountPointRecord{recordedBefore},
		previous:    []healer.PreviousSuperblock{{Dev: dev(9), BootID: "b"}, replaced()},
	},
	"all of it is known, but for the time": {
		record:      &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{recordedBefore}, Previous: []healer.PreviousSuperblock{replaced()}},
		mountPoints: []healer.MountPointRecord{recordedBefore},
		previous:    []healer.PreviousSuperblock{replaced()},
	},
	"all of it is known, in a container": {
		record: &healer.Record{BootID: "b", Previous: []healer.PreviousSuperblock{replaced()}},
		change: func(s *healer.Step) { s.MountPoint = inOneContainer },
	},
	"no record":    {},
	"another step": {record: &healer.Record{BootID: "b"}, change: func(s *healer.Step) { s.Cost = healer.Rebind }},
	"a mount point that is not proven": {
		record: &healer.Record{BootID: "b"},
		change: func(s *healer.Step) { s.MountPoint.Proven = false },
	},
	"in a container": {
		record:   &healer.Record{BootID: "b"},
		change:   func(s *healer.Step) { s.MountPoint = inOneContainer },
		previous: []healer.PreviousSuperblock{replaced()},
	},
	"another boot's are forgotten": {
		record: &healer.Record{
			BootID:      "a",
			MountPoints: []healer.MountPointRecord{recordedBefore},
			Previous:    []healer.PreviousSuperblock{{Dev: dev(1), BootID: "a", Mounts: noted()[:1]}, {Dev: dev(9), BootID: "b"}},
		},
		mountPoints: []healer.MountPointRecord{recordedBefore},
		previous:    []healer.PreviousSuperblock{{Dev: dev(9), BootID: "b"}, replaced()},
	},
	"nothing is mounted": {record: &healer.Record{BootID: "b"}, change: func(s *healer.Step) { s.MountPoint.Stack = nil }},
}

// After a kill in the middle of a step nothing else would tell what was there.
func TestWhatIsReplacedIsRecorded(t *testing.T) {
	dead := on(healer.RoleTarget, podA, dev(1))
	dead.Stack[0].ID, dead.Stack[0].Root, dead.Stack[0].Attr, dead.Stack[0].Propagation.Shared = 7, "/sub", facts.AttrNoExec, 3
	step := healer.Step{Name: "replace", Cost: healer.Replace, MountPoint: dead}
	mountPoints := []healer.MountPoint{
		dead, inOneContainer, containerMountPoint(2, dev(1), "proven"), containerMountPoint(3, dev(1), ""), containerMountPoint(4, dev(2), "proven"),
		func() healer.MountPoint {
			p := containerMountPoint(5, dev(1), "proven")
			p.InContainer.Mount.ID = 0
			return p
		}(),
	}
	for name, tc := range recordedReplacements {
		b := newFixture(t)
		s := step
		if tc.change != nil {
			tc.change(&s)
		}
		_, _ = b.engine.savePrevious(context.Background(), &healer.Case{BootID: "b", MountPoints: mountPoints, Record: tc.record}, s)
		if b.notes.saves != min(1, len(tc.previous)) {
			t.Errorf("%s: %d saves", name, b.notes.saves)
		}
		for _, r := range b.notes.records {
			for i := range r.Previous {
				if since := &r.Previous[i].Since; node.SinceBoot()-*since < time.Minute {
					*since = 0
				} else if r.Previous[i].Dev == dev(1) {
					t.Errorf("%s: replaced at %s", name, *since)
				}
			}
			if !reflect.DeepEqual(r.Previous, tc.previous) || !slices.Equal(r.MountPoints, tc.mountPoints) {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if tc.record != nil && name == "some of it is known" && len(tc.record.Previous[1].Mounts) != 1 {
			t.Errorf("%s: the case was changed", name)
		}
	}
}

// A dead mount may lie beneath one that works, and what a step brings is no previous
// instance.
func TestWhichMountsOfAStackAreRecorded(t *testing.T) {
	other := func(m facts.Mount) facts.Mount { m.Source = "other"; return m }
	of := func(d facts.Dev) facts.Mount { return facts.Mount{Dev: d, FSType: fuseType, Source: fuseSource} }
	one, two, three := dev(1), dev(2), dev(3)
	for name, tc := range map[string]struct {
		stack []facts.Mount // the step brings three, which works as two does
		want  []facts.Dev
	}{
		"a dead one":                {[]facts.Mount{of(one)}, []facts.Dev{one}},
		"what the step brings":      {[]facts.Mount{of(three)}, nil},
		"a dead one beneath":        {[]facts.Mount{of(three), of(one)}, []facts.Dev{one}},
		"two dead ones":             {[]facts.Mount{of(one), of(dev(4))}, []facts.Dev{one, dev(4)}},
		"one that works beneath":    {[]facts.Mount{of(one), of(two)}, []facts.Dev{one}},
		"another volume's beneath":  {[]facts.Mount{of(one), other(of(dev(4)))}, []facts.Dev{one}},
		"another type's beneath":    {[]facts.Mount{of(one), {Dev: dev(4), FSType: "ext4", Source: fuseSource}}, []facts.Dev{one}},
		"the driver's, an old one":  {[]facts.Mount{of(two)}, []facts.Dev{two}},
		"ours above a dead one too": {[]facts.Mount{of(three), of(three), of(one)}, []facts.Dev{one}},
	} {
		b := newFixture(t)
		record := healer.Record{BootID: "b", Newest: 9, MountPoints: []healer.MountPointRecord{{Path: podA}}}
		c := healer.Case{BootID: "b", Record: &record, Superblocks: map[facts.Dev]healer.Superblock{two: answered, three: answered, one: disconn}}
		_, _ = b.engine.savePrevious(context.Background(), &c, healer.Step{Cost: healer.Replace, Source: three, MountPoint: healer.MountPoint{Role: healer.RoleTarget, Path: podA, Proven: true, Stack: tc.stack}})
		var got []facts.Dev
		for _, r := range b.notes.records {
			for _, f := range r.Previous {
				got = append(got, f.Dev)
			}
			if r.Newest != 9 {
				t.Errorf("%s: newest is %d", name, r.Newest)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Mount ids of this boot say nothing of a record from before.
func TestPreviousInARecordOfAnEarlierBoot(t *testing.T) {
	b := newFixture(t)
	c := healer.Case{BootID: "b", Record: &healer.Record{BootID: "a", Newest: 5}}
	_, _ = b.engine.savePrevious(context.Background(), &c, healer.Step{Cost: healer.Replace, MountPoint: on(healer.RoleTarget, podA, dev(1))})
	if r := b.notes.records[volumeKey("", "")]; r.Newest != 5 || len(r.Previous) != 1 {
		t.Errorf("%+v", r)
	}
}

// Each step of a batch adds to what the others put into the record.
func TestWhatABatchReplacesIsRecorded(t *testing.T) {
	b := newFixture(t)
	first, second := containerMountPoint(1, dev(1), "proven"), containerMountPoint(2, dev(2), "proven")
	c := healer.Case{BootID: "b", Record: &healer.Record{BootID: "b"}, MountPoints: []healer.MountPoint{first, second}}
	for _, p := range c.MountPoints {
		_, _ = b.engine.savePrevious(t.Context(), &c, healer.Step{Cost: healer.Replace, MountPoint: p})
	}
	previous := b.notes.records[volumeKey("", "")].Previous
	if len(previous) != 2 || previous[0].Newest != 701 || previous[1].Newest != 702 {
		t.Errorf("%+v", previous)
	}
}

// It is on the disk before the step begins.
func TestWhatIsReplacedIsRecordedFirst(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	var during healer.Record
	b.offer("replace", podA, healer.Replace, func() error {
		during = b.notes.records[volumeKey(driver, volID)]
		return nil
	})
	b.steps[0].MountPoint.Stack, b.steps[0].MountPoint.Proven = []facts.Mount{{Dev: dev(1), Path: podA}}, true
	b.heal(volume)
	if len(during.Previous) != 1 || during.Previous[0].Dev != dev(1) {
		t.Errorf("%+v", during)
	}
}

// Until when a device number was the volume's is known from the last look that
// showed it.
func TestUntilWhenItWasTheVolumes(t *testing.T) {
	for name, tc := range map[string]struct {
		c    healer.Case
		r    healer.Record
		want uint64
	}{
		"the host still has it": {
			c:    healer.Case{BootID: "b", Newest: 90, MountPoints: []healer.MountPoint{on(healer.RoleTarget, podA, dev(2), dev(1))}},
			r:    healer.Record{BootID: "b"},
			want: 90,
		},
		"as recorded": {
			c:    healer.Case{BootID: "b", Newest: 90},
			r:    healer.Record{BootID: "b", Newest: 50, MountPoints: []healer.MountPointRecord{{Dev: dev(1)}}},
			want: 50,
		},
		"recorded in an earlier boot": {
			c: healer.Case{BootID: "b", Newest: 90},
			r: healer.Record{BootID: "a", Newest: 50, MountPoints: []healer.MountPointRecord{{Dev: dev(1)}}},
		},
		"only a container has it": {
			c:    healer.Case{BootID: "b", Newest: 90, MountPoints: []healer.MountPoint{containerMountPoint(1, dev(1), "proven")}},
			r:    healer.Record{BootID: "b", Newest: 50},
			want: 701,
		},
		"what is not proven has it": {
			c: healer.Case{BootID: "b", Newest: 90, MountPoints: []healer.MountPoint{containerMountPoint(1, dev(1), "")}},
			r: healer.Record{BootID: "b", Newest: 50},
		},
		"never before": {c: healer.Case{BootID: "b", Newest: 90}, r: healer.Record{BootID: "b", Newest: 50}},
		"known for longer": {
			c: healer.Case{BootID: "b", Newest: 90},
			r: healer.Record{
				BootID:      "b",
				Newest:      50,
				MountPoints: []healer.MountPointRecord{{Dev: dev(1)}},
				Previous:    []healer.PreviousSuperblock{{Dev: dev(1), BootID: "b", Newest: 70}},
			},
			want: 70,
		},
	} {
		if addPrevious(&tc.r, tc.c, dev(1)); len(tc.r.Previous) != 1 || tc.r.Previous[0].Newest != tc.want {
			t.Errorf("%s: %+v, want %d", name, tc.r.Previous, tc.want)
		}
	}
}

func TestPreviousIsBounded(t *testing.T) {
	var c healer.Case
	for i := range maxPreviousMounts + 10 {
		c.MountPoints = append(c.MountPoints, containerMountPoint(i, dev(1), "proven"))
	}
	var r healer.Record
	for i := range maxPrevious + 4 {
		addPrevious(&r, c, dev(uint32(maxPrevious+4-i)))
	}
	if len(r.Previous) != maxPrevious || r.Previous[maxPrevious-1].Dev != dev(1) || r.Previous[0].Dev != dev(maxPrevious) {
		t.Errorf("%d, the last is %s", len(r.Previous), r.Previous[len(r.Previous)-1].Dev)
	}
	if n := len(r.Previous[maxPrevious-1].Mounts); n != maxPreviousMounts {
		t.Errorf("%d mounts", n)
	}
}

// A slave of the host's mount is none any more when that is gone, and what is left
// of an interrupted replacement has not the attributes that it is to have.
func TestRecordedMount(t *testing.T) {
	slave := healer.PreviousMount{ID: 700, Namespace: 5000, Path: "/data", Attr: facts.AttrNoSUID, Sharing: facts.SharingSlave}
	r := &healer.Record{BootID: "a", Previous: []healer.PreviousSuperblock{{Dev: dev(9), BootID: "b"}, {Dev: dev(1), BootID: "b", Mounts: []healer.PreviousMount{slave}}}}
	// what came later in its place
	left := func(m *facts.ContainerMount) { m.Mount.ID, m.Mount.Dev = 799, dev(2) }
	for name, tc := range map[string]struct {
		record *healer.Record
		change func(*facts.ContainerMount)
		noted  bool
	}{
		"seen before": {record: r, change: func(*facts.ContainerMount) {}, noted: true},
		"no record":   {change: func(*facts.ContainerMount) {}},
		"in another boot": {
			record: &healer.Record{
				BootID:   "b",
				Previous: []healer.PreviousSuperblock{{Dev: dev(1), BootID: "a", Mounts: []healer.PreviousMount{slave}}},
			},
			change: func(*facts.ContainerMount) {},
		},
		"another mount":                   {record: r, change: func(m *facts.ContainerMount) { m.Mount.ID++ }},
		"another superblock":              {record: r, change: func(m *facts.ContainerMount) { m.Mount.Dev = dev(2) }},
		"left in its place":               {record: r, change: left, noted: true},
		"left elsewhere":                  {record: r, change: func(m *facts.ContainerMount) { left(m); m.Mount.Path = "/x" }},
		"left in another container":       {record: r, change: func(m *facts.ContainerMount) { left(m); m.Namespace++ }},
		"there before it, of another one": {record: r, change: func(m *facts.ContainerMount) { left(m); m.Mount.ID = 600 }},
		"another of the same superblock":  {record: r, change: func(m *facts.ContainerMount) { left(m); m.Mount.Dev = dev(1) }},
	} {
		m := containerMountOf(0, "uid-a", dev(1))
		tc.change(&m)
		note, noted := recordedMount(healer.Case{BootID: "b", Record: tc.record}, m)
		if noted != tc.noted || noted && note != slave {
			t.Errorf("%s: %v, %+v", name, noted, note)
		}
	}
}

// Mount ids begin anew with each boot.
func TestSharingOfAnEarlierBoot(t *testing.T) {
	b := newFUSEBench(t)
	b.renew()
	m := b.run("uid-a", previously)
	k := volumeKey(driver, volID)
	r := b.notes.records[k]
	r.Previous = []healer.PreviousSuperblock{{Dev: previously, Mounts: []healer.PreviousMount{{ID: m.Mount.ID, Sharing: facts.SharingSlave}}}}
	for boot, want := range map[string]facts.Sharing{"boot-1": facts.SharingSlave, "boot-0": facts.SharingNone} {
		r.Previous[0].BootID = boot
		b.notes.records[k] = r
		b.engine.scanned = newScannedVolumes()
		b.heal(volume)
		if got := b.inContainers(); len(got) != 1 || got[0].InContainer.Sharing != want {
			t.Errorf("%s: %+v", boot, got)
		}
	}
}

func TestPreviousThatIsKept(t *testing.T) {
	ago := func(d time.Duration) time.Duration { return node.SinceBoot() - d }
	now := healer.Record{MountPoints: []healer.MountPointRecord{{Dev: dev(2)}}}
	for name, tc := range map[string]struct {
		record *healer.Record
		want   []facts.Dev
	}{
		"no record": {},
		"an earlier boot": {
			record: &healer.Record{
				BootID:      "a",
				MountPoints: []healer.MountPointRecord{{Dev: dev(1)}},
				Previous:    []healer.PreviousSuperblock{{Dev: dev(3), BootID: "b", Since: ago(0)}},
			},
		},
		"as it was":                    {record: &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{{Dev: dev(2)}}}},
		"another one, with other pods": {record: &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{{Dev: dev(1)}}}},
		"another one, the pod stayed": {
			record: &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{{Dev: dev(1), Role: healer.RoleTarget, Path: podA}}},
			want:   []facts.Dev{dev(1)},
		},
		"no number": {record: &healer.Record{BootID: "b", MountPoints: []healer.MountPointRecord{{}}}},
		"a moment ago": {
			record: &healer.Record{
				BootID:   "b",
				Previous: []healer.PreviousSuperblock{{Dev: dev(1), BootID: "b", Since: ago(previousGrace - 10*time.Second)}},
			},
			want: []facts.Dev{dev(1)},
		},
		"long ago": {
			record: &healer.Record{
				BootID:   "b",
				Previous: []healer.PreviousSuperblock{{Dev: dev(1), BootID: "b", Since: ago(previousGrace + time.Second)}},
			},
		},
		"in the future": {
			record: &healer.Record{BootID: "b", Previous: []healer.PreviousSuperblock{{Dev: dev(1), BootID: "b", Since: ago(-time.Hour)}}},
		},
		"its number again": {
			record: &healer.Record{BootID: "b", Previous: []healer.PreviousSuperblock{{Dev: dev(2), BootID: "b", Since: ago(0)}}},
		},
	} {
		var got []facts.Dev
		for _, f := range keepPrevious(healer.Case{BootID: "b", Record: tc.record, MountPoints: []healer.MountPoint{on(healer.RoleTarget, podA, dev(2))}}, now) {
			got = append(got, f.Dev)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// The driver may let an old daemon live for the containers that it has.
func TestPreviousThatLingers(t *testing.T) {
	long := node.SinceBoot() - time.Hour
	was := &healer.Record{BootID: "b", Previous: []healer.PreviousSuperblock{
		{Dev: dev(1), BootID: "b", Since: long}, {Dev: dev(3), BootID: "b", Since: long}, {Dev: dev(2), BootID: "b", Since: long},
	}}
	c := healer.Case{BootID: "b", Record: was, Lingering: []healer.InContainer{
		*containerMountPoint(1, dev(1), "proven").InContainer, *containerMountPoint(2, dev(3), "").InContainer, *containerMountPoint(3, dev(2), "proven").InContainer,
	}}
	was.MountPoints = []healer.MountPointRecord{{Dev: dev(5), Role: healer.RoleTarget, Path: podB}} // of a pod that went
	kept := keepPrevious(c, healer.Record{MountPoints: []healer.MountPointRecord{{Dev: dev(4)}}})
	if len(kept) != 2 || kept[0].Dev != dev(1) || kept[1].Dev != dev(2) || len(kept[0].Mounts) != 1 || kept[0].Mounts[0].ID != 701 {
		t.Errorf("%+v", kept)
	}
	if len(was.Previous[0].Mounts) != 0 {
		t.Error("the case was changed")
	}
	c.Lingering = append(c.Lingering, *containerMountPoint(4, dev(5), "proven").InContainer)
	if kept := keepPrevious(c, healer.Record{MountPoints: []healer.MountPointRecord{{Dev: dev(4)}}}); len(kept) != 3 || kept[2].Dev != dev(5) {
		t.Errorf("a container outlives the pod of the record: %+v", kept)
	}
}

// A container that was starting while the daemon died is found for a while.
func TestPreviousOutlivesTheChange(t *testing.T) {
	b := newFUSEBench(t)
	b.renew()
	b.healthy()
	r, _ := b.notes.Load(driver, volID)
	if len(r.Previous) != 1 || r.Previous[0].Dev != previously || r.MountPoint(podA).Dev != renewed {
		t.Fatalf("%+v", r)
	}
	b.walks = nil
	if b.heal(volume); len(b.walks) == 0 {
		t.Error("the containers are not scanned any more")
	}
	k := volumeKey(driver, volID)
	old := b.notes.records[k]
	old.Previous[0].Since = node.SinceBoot() - previousGrace - time.Second
	b.heal(volume)
	if b.walks = nil; true {
		b.heal(volume)
	}
	if r, _ = b.notes.Load(driver, volID); len(r.Previous) != 0 || len(b.walks) != 0 {
		t.Errorf("looked for ever: %+v, %v", r.Previous, b.walks)
	}
}

// Containers and subPaths come and go with their pod: a record of them would have
// them missed.
func TestContainersAndSubPathsAreNoRecordedMountPoints(t *testing.T) {
	c := healer.Case{MountPoints: []healer.MountPoint{on(healer.RoleTarget, podA, dev(1)), containerMountPoint(1, dev(1), "proven"), on(healer.RoleTarget, "/sub", dev(1))}}
	c.MountPoints[1].Stack[0].Path = c.MountPoints[1].Path
	c.MountPoints[2].Layout.Kind = layout.Subpath
	for i := range c.MountPoints {
		c.MountPoints[i].Proven = true
	}
	if r := newRecord(c); len(r.MountPoints) != 1 || r.MountPoints[0].Path != podA {
		t.Errorf("%+v", r.MountPoints)
	}
}

// A record that cannot be written blocks no heal but one: without it the next call could have
// the driver start a second daemon on the storage.
func TestStepsWhenTheRecordCannotBeSaved(t *testing.T) {
	for cost, runs := range map[healer.Cost]bool{healer.Replace: true, healer.Restage: false} {
		b := newFixture(t)
		b.healthy()
		b.fall(podA, healer.NotMounted)
		at, ran := b.last().MountPoints[0], false
		b.steps = []healer.Step{{Name: "step", MountPoint: at, Cost: cost, Heals: []healer.Reason{healer.NotMounted}, Run: func(context.Context, func(context.Context) error) error {
			ran = true
			return nil
		}}}
		if cost == healer.Replace {
			b.steps[0].Source = disk
		}
		b.engine.cfg.Records = unwritable{b.engine.cfg.Records}
		if r := b.heal(volume); len(r.Steps) != 1 || ran != runs || (r.Steps[0].Err == nil) != runs {
			t.Errorf("%v: it ran: %v, %+v", cost, ran, r.Steps)
		} else if class, _ := r.Failure(); !runs && class.Tier == api.Terminal { // somebody may make the disk writable
			t.Errorf("%v: it is not tried again: %v", cost, r.Steps[0].Err)
		}
	}
}

// The record of an earlier boot does not say that a restage was begun.
func TestRestageWithARecordOfAnEarlierBoot(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.fall(podA, healer.NotMounted)
	b.steps = []healer.Step{{
		Name: "step", MountPoint: b.last().MountPoints[0], Cost: healer.Restage, Heals: []healer.Reason{healer.NotMounted},
		Run: func(context.Context, func(context.Context) error) error { return nil },
	}}
	k := volumeKey(driver, volID)
	r := b.notes.records[k]
	r.BootID = "another"
	b.notes.records[k] = r
	if r := b.heal(volume); len(r.Steps) != 0 || len(r.Refused) != 1 || !strings.Contains(r.Refused[0].Why, "since the node booted") {
		t.Errorf("%+v", r)
	}
}

type unwritable struct{ Records }

func (unwritable) Save(healer.Record) error { return fmt.Errorf("save: %w", syscall.EROFS) }

// Where nothing is staged, each pod's mount may be a filesystem instance of its own. One that went with its
// pod was not replaced: no other pod had it.
func TestAnInstanceThatGoesWithItsPodWasNotReplaced(t *testing.T) {
	b := newFixture(t)
	b.unmount(staging)
	b.publish(podB)
	for p, dev := range map[string]facts.Dev{podA: previously, podB: renewed} {
		b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = dev, "nfs4", "127.0.0.1:/" })
		b.answers[dev] = goodSight
	}
	b.healthy()
	b.unverified = []facts.Unverified{{Workload: facts.Workload{PodUID: "uid-b", ContainerID: "c"}, Why: facts.WhySandbox, Started: time.Second}}
	b.unmount(podA)
	delete(b.files, podA)
	for range 2 {
		b.heal(healer.Volume{ID: volID, Path: podB})
		if got := b.last().Unverified; len(got) != 0 {
			t.Errorf("of the other pod: %+v", got)
		}
	}
	b.change(podB, func(m *facts.Mount) { m.Dev, m.ID = third, 900 })
	b.answers[third] = goodSight
	if b.heal(healer.Volume{ID: volID, Path: podB}); len(b.last().Unverified) != 1 {
		t.Errorf("its own was replaced: %+v", b.last().Unverified)
	}
}

var third = facts.Dev{Minor: 77}
