package mounts

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

var replaceExamples = []example{
	{name: "outlived", build: cases.With(cases.Outliving), want: []string{"Disconnected! target: ENOTCONN"}},
	{
		name:  "outlived, stale",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, cases.Errno(syscall.ESTALE))),
		want:  []string{"StaleFileHandle! target: ESTALE"},
	},
	{
		name:  "outlived, I/O error",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, cases.Errno(syscall.EIO))),
		want:  []string{"IOError! target: EIO"},
	},
	{
		name:  "outlived, shut down",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, shutDown)),
		want:  []string{"FilesystemShutdown! target:"},
	},
	{
		name:  "outlived, and the next one is dead too",
		build: cases.With(cases.Outliving, cases.Of(cases.Renewed, cases.Errno(syscall.ENOTCONN))),
		want:  []string{"Disconnected! target:", "Disconnected staging:"},
	},
	// What is behind those may come back by itself.
	{
		name:  "another one that is silent",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} })),
		want:  []string{"NotResponding target:"},
	},
	{
		name:  "another one that refuses",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, cases.Errno(syscall.EACCES))),
		want:  []string{"PermissionDenied target:"},
	},
	{
		name:  "a live one over the dead",
		build: cases.With(cases.Outliving, under(func(*facts.Mount) {}), func(c *healer.Case) { slices.Reverse(c.MountPoints[0].Stack) }),
		want:  []string{"StackedMounts target: 2 mounts are stacked on the path, and the top one covers another filesystem instance"},
	},
	{
		name:  "a live one over two dead ones",
		build: cases.With(cases.Outliving, covered(cases.Previously, facts.Dev{Minor: 49})),
		want:  []string{"StackedMounts target: 3 mounts are stacked on the path, and the top one covers"},
	},
	{
		name:  "a dead one over the live",
		build: cases.With(cases.Outliving, under(func(*facts.Mount) {})),
		want:  []string{"StackedMounts target:", "Disconnected! target:"},
	},
	{
		name:  "an overlay over a dead upper",
		build: cases.With(cases.Outliving, cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.FSType = "overlay" })),
		want:  []string{"WrongVolumeMounted target:", "Disconnected target:"},
	},
}

func shutDown(sb *healer.Superblock) { sb.Shutdown, sb.Answer.Errno = true, 0 }

func TestReplaceConditions(t *testing.T) {
	for _, tc := range replaceExamples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// One dead instance is to be replaced at each of its mount points.
func TestEachDeadMountPointHasItsOwnStep(t *testing.T) {
	const other = "/k/pods/b/mount"
	c := cases.With(cases.Outliving, func(c *healer.Case) {
		p := c.MountPoints[0]
		p.Path, p.Want, p.PodUID = other, nil, "b"
		p.Stack = slices.Clone(p.Stack)
		p.Stack[0].Path = other
		c.MountPoints = append(c.MountPoints, p)
	})()
	f, err := New(idle{t}).Examine(c)
	if err != nil || len(f.Conditions) != 2 || len(f.Steps) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	for i, path := range []string{cases.Published, other} {
		if f.Conditions[i].MountPoint != path || !f.Conditions[i].Acute || f.Steps[i].MountPoint.Path != path || f.Steps[i].Refused != "" {
			t.Errorf("%+v, %+v", f.Conditions[i], f.Steps[i])
		}
	}
}

var replacements = map[string]struct {
	change []cases.Change
	plan   facts.PlacePlan // none: placePlan()
}{
	"a subdirectory": {},
	"the whole volume": {
		change: []cases.Change{
			top(0, func(m *facts.Mount) { m.Root = "/" }), recorded(0, func(r *healer.MountPointRecord) { r.Root = "/" }),
		},
		plan: placePlan(func(p *facts.PlacePlan) { p.Sub = "" }),
	},
	// The dead mount tells itself how it was mounted.
	"not as recorded": {
		change: []cases.Change{top(0, func(m *facts.Mount) { m.Attr = facts.AttrReadOnly | facts.AttrNoSUID })},
		plan: placePlan(func(p *facts.PlacePlan) {
			p.Attr = facts.AttrReadOnly | facts.AttrNoSUID
		}),
	},
	"shared": {
		change: []cases.Change{top(0, func(m *facts.Mount) { m.Propagation.Shared = 3 })},
		plan:   placePlan(shared),
	},
	"slave": {change: []cases.Change{top(0, func(m *facts.Mount) { m.Propagation.Master = 3 })}, plan: placePlan(slave)},
	"slave and shared": {
		change: []cases.Change{top(0, func(m *facts.Mount) { m.Propagation = facts.Propagation{Shared: 3, Master: 4} })},
		plan:   placePlan(shared),
	},
	"a name that the dead daemon did not look up": {change: []cases.Change{top(0, func(m *facts.Mount) { m.RootDeleted = true })}},
	"shared when it was recorded only":            {change: []cases.Change{recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 })}},
	"not recorded at this mount point":            {change: []cases.Change{func(c *healer.Case) { c.MountPoints[0].Want = nil }}},
	"interrupted, and dead itself": {
		change: []cases.Change{
			top(0, func(m *facts.Mount) { m.Attr = cases.Placeholder }), recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 }),
		},
		plan: placePlan(shared),
	},
	"below a staged subvolume": {
		change: []cases.Change{func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/vols/v", "/vols/v"
			c.Record.MountPoints[0].Root, c.MountPoints[0].Stack[0].Root = "/vols/v/a/b", "/vols/v/a/b"
		}},
		plan: placePlan(func(p *facts.PlacePlan) { p.Sub = "a/b" }),
	},
	"another pod's was made of it": {change: []cases.Change{func(c *healer.Case) {
		c.Record.MountPoints = append(c.Record.MountPoints, healer.MountPointRecord{Role: healer.RoleTarget, Path: "/k/pods/b/mount", Dev: facts.Dev{Minor: 40}})
		c.MountPoints[0].Want = c.Record.MountPoint(cases.Published)
	}}},
	"ID-mapped both": {
		change: []cases.Change{
			top(0, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap }), top(1, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap }),
		},
		plan: placePlan(func(p *facts.PlacePlan) { p.Attr |= facts.AttrIDMap }),
	},
	"read-only both": {change: []cases.Change{func(c *healer.Case) {
		c.MountPoints[0].Stack[0].SuperReadOnly, c.MountPoints[1].Stack[0].SuperReadOnly = true, true
	}}},
	"staged over a dead one": {change: []cases.Change{func(c *healer.Case) {
		m := c.MountPoints[1].Stack[0]
		m.ID, m.OldID, m.Dev, m.FSType = 6, 6, cases.Previously, "fuse.y"
		c.MountPoints[1].Stack = append(c.MountPoints[1].Stack, m)
	}}},
	"a disk by another name": {change: []cases.Change{func(c *healer.Case) {
		was, now := facts.Dev{Major: 8, Minor: 50}, facts.Dev{Major: 8, Minor: 60}
		c.Superblocks = map[facts.Dev]healer.Superblock{was: c.Superblocks[cases.Previously], now: c.Superblocks[cases.Renewed]}
		c.MountPoints[0].Stack[0].Dev, c.MountPoints[1].Stack[0].Dev, c.MountPoints[1].Stack[0].Source = was, now, "/dev/sdc"
		c.MountPoints[0].Stack[0].FSType, c.MountPoints[1].Stack[0].FSType = "ext4", "ext4"
		cases.Of(now, func(sb *healer.Superblock) { sb.Device = &facts.BlockDevice{Name: "sdc"} })(c)
		c.Record.MountPoints[0].Dev, c.Record.MountPoints[1].Dev = was, was
	}}},
	"a full volume": {change: []cases.Change{cases.Of(cases.Renewed, func(sb *healer.Superblock) {
		sb.Space = facts.Space{Blocks: 100, Files: 100, FreeFiles: 5}
	})}},
	"a slow volume": {change: []cases.Change{cases.Of(cases.Renewed, func(sb *healer.Superblock) { sb.Answer.Late = 9 })}},
	"shut down": {
		change: []cases.Change{cases.Of(cases.Previously, shutDown)},
		plan:   placePlan(func(p *facts.PlacePlan) { p.Ended = true }),
	},
}

func TestReplace(t *testing.T) {
	for name, tc := range replacements {
		t.Run(name, func(t *testing.T) {
			c := cases.With(append([]cases.Change{cases.Outliving}, tc.change...)...)()
			h := &scribe{}
			s := step(t, h, c)
			if s.Refused != "" || s.Name != StepReplace || s.Cost != healer.Replace || s.Source != c.MountPoints[1].Dev() || s.MountPoint.Path != cases.Published || !slices.Equal(s.Heals, deadReasons) {
				t.Fatalf("%+v", s)
			}
			if err := s.Run(context.Background(), func(context.Context) error { return cases.ErrRevalidate }); !errors.Is(err, cases.ErrRevalidate) {
				t.Errorf("got %v", err)
			}
			if tc.plan.Target == "" {
				tc.plan = placePlan()
			}
			tc.plan.Staged, tc.plan.Position, tc.plan.Dead = c.MountPoints[1].Stack[0], facts.BeneathDead, c.MountPoints[0].Stack[0]
			if h.did != "replace" || !reflect.DeepEqual(h.plan, tc.plan) {
				t.Errorf("%s %+v\nwant %+v", h.did, h.plan, tc.plan)
			}
		})
	}
}

// What is wrong at another pod's mount point blocks no other mount point.
func TestReplaceBesideAnotherVolume(t *testing.T) {
	c := cases.With(cases.Outliving, func(c *healer.Case) {
		p := c.MountPoints[0]
		p.Path, p.Want, p.PodUID = "/k/pods/b/mount", nil, "b"
		p.Stack = slices.Clone(p.Stack)
		p.Stack[0].Path, p.Stack[0].Dev = p.Path, cases.Renewed
		p.Inspect.VolData = &facts.VolData{DriverName: "d", VolumeHandle: "w"}
		c.MountPoints = append(c.MountPoints, p)
	})()
	if s := step(t, idle{t}, c); s.MountPoint.Path != cases.Published || s.Refused != "" {
		t.Errorf("%+v", s)
	}
}

var refusedReplacements = []struct {
	why    string
	change []cases.Change
}{
	{"never seen healthy on this node", []cases.Change{cases.Unrecorded}},
	{
		"several mounts are stacked on the staging path",
		[]cases.Change{func(c *healer.Case) { c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2) }},
	},
	{
		"the staged mount is read-only",
		[]cases.Change{attr(1, cases.Placeholder), recorded(1, func(r *healer.MountPointRecord) { r.Attr = cases.Placeholder })},
	},
	{
		"the recorded staging path is another one",
		[]cases.Change{recorded(1, func(r *healer.MountPointRecord) { r.Path = "/k/other" })},
	},
	{"shows another directory than the recorded one", []cases.Change{top(1, func(m *facts.Mount) { m.Root = "/x" })}},
	{"not healthy (Disconnected)", []cases.Change{cases.Of(cases.Renewed, cases.Errno(syscall.ENOTCONN))}},
	{
		"not healthy (NotResponding)",
		[]cases.Change{cases.Of(cases.Renewed, func(sb *healer.Superblock) { sb.Answer = facts.Answer{} })},
	},
	{"not healthy (FilesystemShutdown)", []cases.Change{cases.Of(cases.Renewed, shutDown)}},
	{
		"not healthy (WrongVolumeMounted)",
		[]cases.Change{func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }},
	},
	{
		"not healthy (WrongVolumeMounted)",
		[]cases.Change{top(0, func(m *facts.Mount) { m.Source = "another" }), top(1, func(m *facts.Mount) { m.Source = "another" })},
	},
	{
		"the directory that the mount showed was deleted",
		[]cases.Change{top(0, func(m *facts.Mount) { m.RootDeleted, m.FSType = true, "xfs" })},
	},
	{
		"not known to be the staged filesystem",
		[]cases.Change{recorded(0, func(r *healer.MountPointRecord) { r.Dev.Minor++ })},
	},
	{
		"not known to be the staged filesystem",
		[]cases.Change{func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[:1]; c.MountPoints[1].Want = nil }},
	},
	{
		"not known to be the staged filesystem",
		[]cases.Change{func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[1:]; c.MountPoints[0].Want = nil }},
	},
	{
		"not known to be the staged filesystem",
		[]cases.Change{func(c *healer.Case) { c.MountPoints[0].Want = nil; c.Record.MountPoints[0].Dev.Minor++ }},
	},
	{"another source than the staged one", []cases.Change{top(0, func(m *facts.Mount) { m.Source = "another" })}},
	{"the dead filesystem was read-only", []cases.Change{top(0, func(m *facts.Mount) { m.SuperReadOnly = true })}},
	{"another ID mapping", []cases.Change{top(0, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap })}},
	{"another ID mapping", []cases.Change{attr(1, facts.AttrIDMap)}},
	{
		"WrongVolumeMounted: kubelet's vol_data.json",
		[]cases.Change{func(c *healer.Case) { c.MountPoints[0].Inspect.VolData.VolumeHandle = "w" }},
	},
	{
		"WrongVolumeMounted: it shows the directory",
		[]cases.Change{recorded(0, func(r *healer.MountPointRecord) { r.Root = "/x" })},
	},
	{
		"how the mount point was mounted is not known",
		[]cases.Change{attr(0, cases.Placeholder), func(c *healer.Case) { c.MountPoints[0].Want = nil }},
	},
	{
		"does not lie below the staged one",
		[]cases.Change{func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/su", "/su"
		}},
	},
}

func TestReplaceIsRefused(t *testing.T) {
	for _, tc := range refusedReplacements {
		s := step(t, idle{t}, cases.With(append([]cases.Change{cases.Outliving}, tc.change...)...)())
		if s.Name != StepReplace || s.Run != nil || !strings.Contains(s.Refused, tc.why) {
			t.Errorf("%s refused with %q, want %q", s.Name, s.Refused, tc.why)
		}
	}
	stale := cases.With(cases.Outliving, cases.Of(cases.Previously, cases.Errno(syscall.ESTALE)))()
	if s := step(t, &scribe{old: true}, stale); s.Run != nil || !strings.HasPrefix(s.Refused, "ReplaceNotSupported") || !strings.Contains(s.Refused, "delete the pod") {
		t.Errorf("an old kernel: %q", s.Refused)
	}
}

// Where only a cover is possible, what was aborted stays as it is.
func TestCoverOnlyWhatIsGone(t *testing.T) {
	for e, want := range map[syscall.Errno]string{syscall.ENOTCONN: StepCover, syscall.ECONNABORTED: StepReplace} {
		s := step(t, &scribe{old: true}, cases.With(cases.Outliving, cases.Of(cases.Previously, cases.Errno(e)))())
		if s.Name != want || (s.Refused == "") != (want == StepCover) {
			t.Errorf("%s: %s, refused with %q", facts.ErrnoName(e), s.Name, s.Refused)
		}
	}
}

// An interrupted cover has made the dead mount private: how it was shared is in the record.
func TestCoverKeepsPropagation(t *testing.T) {
	for was, want := range map[facts.Propagation]facts.PlacePlan{
		{}:          {Private: true},
		{Shared: 5}: {Shared: true},
		{Master: 3}: {},
	} {
		c := cases.With(cases.Outliving)()
		recorded := healer.MountPointRecord{Dev: cases.Previously, Propagation: was}
		if c.MountPoints[0].Want != nil {
			recorded = *c.MountPoints[0].Want
			recorded.Propagation = was
		}
		c.MountPoints[0].Want, c.MountPoints[0].Stack[0].Propagation = &recorded, facts.Propagation{}
		h := &scribe{old: true}
		s := step(t, h, c)
		if s.Name != StepCover || s.Refused != "" || !slices.Equal(s.Heals, []healer.Reason{healer.Disconnected}) {
			t.Fatalf("%+v", s)
		}
		if err := s.Run(t.Context(), func(context.Context) error { return nil }); err != nil || h.did != "cover" || h.plan.Private != want.Private || h.plan.Shared != want.Shared {
			t.Errorf("%+v: %v, %s %+v", was, err, h.did, h.plan)
		}
	}
}

// The first reason is the one that a person can do something about.
func TestUnfit(t *testing.T) {
	c := cases.With(cases.Outliving, cases.StagingLost)()
	staged, _ := c.Staged()
	if why := unfit(c, staged); why != "the staged mount is gone" {
		t.Errorf("nothing staging: %q", why)
	}
	c = cases.With(cases.Outliving)()
	staged, _ = c.Staged()
	for status, harm := range map[healer.Status]bool{healer.Degraded: false, healer.Inaccessible: true, healer.DataLoss: true} {
		c.Found = []healer.Condition{
			{MountPoint: staged.Path, Reason: healer.DeviceMissing, Status: status}, {MountPoint: cases.Published, Reason: healer.Disconnected, Status: healer.Inaccessible},
		}
		why := unfit(c, staged)
		if (why != "") != harm {
			t.Errorf("%s at the staging mount point: %q", status, why)
		}
	}
}

func TestNothingIsReplacedFor(t *testing.T) {
	for name, change := range map[string]cases.Change{
		"the only instance":      func(c *healer.Case) { c.MountPoints[1].Stack[0].Dev = cases.Previously },
		"nothing staged":         cases.StagingLost,
		"no staging mount point": func(c *healer.Case) { c.MountPoints = c.MountPoints[:1] },
		"one that is silent":     cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} }),
		"one that refuses":       cases.Of(cases.Previously, cases.Errno(syscall.EACCES)),
		"one that answers":       cases.Of(cases.Previously, cases.Errno(0)),
		"another type":           cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.FSType = "overlay" }),
		"a staged one, of two": func(c *healer.Case) {
			c.MountPoints[0].Role = healer.RoleStaging
			c.MountPoints[0], c.MountPoints[1] = c.MountPoints[1], c.MountPoints[0]
		},
		"a staged one":          func(c *healer.Case) { c.MountPoints[0].Role = healer.RoleStaging },
		"what failed otherwise": cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.Answer.Errno, sb.ReadOnly = 0, true }),
	} {
		f, err := New(idle{t}).Examine(cases.With(cases.Outliving, change)())
		if err != nil || len(f.Steps) != 0 {
			t.Errorf("%s: %+v, %v", name, f.Steps, err)
		}
	}
}

func TestUnmountDeadTop(t *testing.T) {
	for name, tc := range map[string]struct {
		below []func(*facts.Mount)
		why   string
	}{
		"the live one below": {below: []func(*facts.Mount){func(*facts.Mount) {}}},
		"dead as well":       {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev = cases.Previously }}},
		"three of them":      {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev = cases.Previously }, func(*facts.Mount) {}}},
		"ours, interrupted":  {below: []func(*facts.Mount){func(m *facts.Mount) { m.Attr = cases.Placeholder }}},
		"another filesystem": {
			below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev.Minor, m.FSType = 99, "ext4" }},
			why:   "is not the staged filesystem",
		},
		"another directory": {
			below: []func(*facts.Mount){func(m *facts.Mount) { m.Root = "/x" }},
			why:   "shows another directory",
		},
		"dead, of another directory": {
			below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev, m.Root = cases.Previously, "/x" }},
			why:   "is not the staged filesystem",
		},
	} {
		c := cases.With(cases.Outliving)()
		for _, change := range tc.below {
			under(change)(&c)
		}
		h := &scribe{}
		s := step(t, h, c)
		if s.Name != StepUnmountDeadTop || s.Cost != healer.Replace || s.Source != cases.Renewed || !s.CanHeal(healer.Disconnected) || !s.CanHeal(healer.StackedMounts) {
			t.Fatalf("%s: %+v", name, s)
		}
		if tc.why != "" {
			if s.Run != nil || !strings.Contains(s.Refused, tc.why) {
				t.Errorf("%s: refused with %q", name, s.Refused)
			}
			continue
		}
		if err := s.Run(context.Background(), func(context.Context) error { return cases.ErrRevalidate }); !errors.Is(err, cases.ErrRevalidate) {
			t.Errorf("%s: got %v", name, err)
		}
		if stack := c.MountPoints[0].Stack; h.did != "unmount-dead-top" || !reflect.DeepEqual(h.on, stack[0]) || h.below != stack[1].Ref() || h.ended {
			t.Errorf("%s: %s %+v off %+v", name, h.did, h.on, h.below)
		}
	}
}

func TestUnmountShutDownTop(t *testing.T) {
	c := cases.With(cases.Outliving, cases.Of(cases.Previously, func(sb *healer.Superblock) { sb.Answer.Errno, sb.Shutdown = 0, true }))()
	under(func(*facts.Mount) {})(&c)
	h := &scribe{}
	if s := step(t, h, c); s.Run(context.Background(), func(context.Context) error { return nil }) != nil || h.did != "unmount-dead-top" || !h.ended {
		t.Errorf("%s, ended: %t", h.did, h.ended)
	}
}

// covered puts dead mounts beneath one of the renewed volume at the target.
func covered(devs ...facts.Dev) cases.Change {
	return func(c *healer.Case) {
		m := c.MountPoints[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, cases.Renewed
		c.MountPoints[0].Stack = []facts.Mount{m}
		for i, d := range devs {
			m.ID, m.OldID, m.Dev = uint64(4-i), 4-i, d
			c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, m)
		}
	}
}

// A driver that finds its mount dead may mount on top of it. What a mount covers has
// no path, so it is only told.
func TestDeadBeneathALiveOne(t *testing.T) {
	c := cases.With(cases.Outliving, covered(cases.Previously))()
	f, err := New(idle{t}).Examine(c)
	if err != nil || len(f.Steps) != 0 {
		t.Errorf("%+v, %v", f.Steps, err)
	}
	at := slices.IndexFunc(f.Conditions, func(c healer.Condition) bool { return c.Reason == healer.StackedMounts })
	if at < 0 || f.Conditions[at].Acute || f.Conditions[at].Status != healer.Degraded ||
		!strings.Contains(f.Conditions[at].Message, "covers another filesystem instance") || f.Conditions[at].Advice != adviceCovered || f.Conditions[at].Ambiguous {
		t.Errorf("%+v", f.Conditions)
	}
	// The record names 16 previous instances, and the stack has more.
	if p := cases.With(cases.Outliving, covered(cases.Previously, facts.Dev{Minor: 80}))(); stacked(p, p.MountPoints[0]).Ambiguous {
		t.Error("one that the record does not name any more: in doubt")
	}
	for name, doubt := range map[string]cases.Change{
		"beneath the same one again": func(c *healer.Case) {
			covered(cases.Renewed, facts.Dev{Minor: 80}, cases.Previously)(c)
		},
		"one that the volume is not known to have had": func(c *healer.Case) {
			for i := range c.Record.MountPoints {
				c.Record.MountPoints[i].Dev = cases.Renewed
			}
		},
		"another boot":   func(c *healer.Case) { c.BootID = "next" },
		"another source": func(c *healer.Case) { c.MountPoints[0].Stack[1].Source = "other" },
		"another type":   func(c *healer.Case) { c.MountPoints[0].Stack[1].FSType = "ext4" },
	} {
		if p := cases.With(cases.Outliving, covered(cases.Previously), doubt)(); !stacked(p, p.MountPoints[0]).Ambiguous {
			t.Errorf("%s: no doubt", name)
		}
	}
}
