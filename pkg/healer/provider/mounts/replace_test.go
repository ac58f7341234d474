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
)

var replaceExamples = []example{
	{name: "outlived", build: with(outliving), want: []string{"Disconnected! target: ENOTCONN"}},
	{
		name:  "outlived, stale",
		build: with(outliving, of(previously, errno(syscall.ESTALE))),
		want:  []string{"StaleFileHandle! target: ESTALE"},
	},
	{name: "outlived, I/O error", build: with(outliving, of(previously, errno(syscall.EIO))), want: []string{"IOError! target: EIO"}},
	{name: "outlived, shut down", build: with(outliving, of(previously, shutDown)), want: []string{"FilesystemShutdown! target:"}},
	{
		name:  "outlived, and the next one is dead too",
		build: with(outliving, of(renewed, errno(syscall.ENOTCONN))),
		want:  []string{"Disconnected! target:", "Disconnected staging:"},
	},
	// What is behind those may come back by itself.
	{
		name:  "another one that is silent",
		build: with(outliving, of(previously, func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} })),
		want:  []string{"NotResponding target:"},
	},
	{
		name:  "another one that refuses",
		build: with(outliving, of(previously, errno(syscall.EACCES))),
		want:  []string{"PermissionDenied target:"},
	},
	{
		name:  "a live one over the dead",
		build: with(outliving, under(func(*facts.Mount) {}), func(c *healer.Case) { slices.Reverse(c.MountPoints[0].Stack) }),
		want:  []string{"StackedMounts target: 2 mounts are stacked on the path, and the top one covers another filesystem instance"},
	},
	{
		name:  "a live one over two dead ones",
		build: with(outliving, covered(previously, facts.Dev{Minor: 49})),
		want:  []string{"StackedMounts target: 3 mounts are stacked on the path, and the top one covers"},
	},
	{
		name:  "a dead one over the live",
		build: with(outliving, under(func(*facts.Mount) {})),
		want:  []string{"StackedMounts target:", "Disconnected! target:"},
	},
	{
		name:  "an overlay over a dead upper",
		build: with(outliving, of(previously, func(sb *facts.Superblock) { sb.FSType = "overlay" })),
		want:  []string{"WrongVolumeMounted target:", "Disconnected target:"},
	},
}

func shutDown(sb *facts.Superblock) { sb.Shutdown, sb.Answer.Errno = true, 0 }

func TestReplaceConditions(t *testing.T) {
	for _, tc := range replaceExamples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// One dead instance is to be replaced at each of its mount points.
func TestEachDeadMountPointHasItsOwnStep(t *testing.T) {
	const other = "/k/pods/b/mount"
	c := with(outliving, func(c *healer.Case) {
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
	for i, path := range []string{published, other} {
		if f.Conditions[i].MountPoint != path || !f.Conditions[i].Acute || f.Steps[i].MountPoint.Path != path || f.Steps[i].Refused != "" {
			t.Errorf("%+v, %+v", f.Conditions[i], f.Steps[i])
		}
	}
}

func TestReplace(t *testing.T) {
	plan := func(change ...func(*facts.RebindPlan)) facts.RebindPlan {
		p := facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true, Target: published}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	shared := func(p *facts.RebindPlan) { p.Private, p.Shared = false, true }
	slave := func(p *facts.RebindPlan) { p.Private = false }
	for name, tc := range map[string]struct {
		change []func(*healer.Case)
		plan   facts.RebindPlan
	}{
		"a subdirectory": {nil, plan()},
		"the whole volume": {[]func(*healer.Case){
			top(0, func(m *facts.Mount) { m.Root = "/" }), recorded(0, func(r *healer.MountPointRecord) { r.Root = "/" }),
		}, plan(func(p *facts.RebindPlan) { p.Sub = "" })},
		// The dead mount tells itself how it was mounted.
		"not as recorded": {[]func(*healer.Case){top(0, func(m *facts.Mount) { m.Attr = facts.AttrReadOnly | facts.AttrNoSUID })}, plan(func(p *facts.RebindPlan) {
			p.Attr = facts.AttrReadOnly | facts.AttrNoSUID
		})},
		"shared":                           {[]func(*healer.Case){top(0, func(m *facts.Mount) { m.Propagation.Shared = 3 })}, plan(shared)},
		"slave":                            {[]func(*healer.Case){top(0, func(m *facts.Mount) { m.Propagation.Master = 3 })}, plan(slave)},
		"slave and shared":                 {[]func(*healer.Case){top(0, func(m *facts.Mount) { m.Propagation = facts.Propagation{Shared: 3, Master: 4} })}, plan(shared)},
		"shared when it was recorded only": {[]func(*healer.Case){recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 })}, plan()},
		"not recorded at this mount point": {[]func(*healer.Case){func(c *healer.Case) { c.MountPoints[0].Want = nil }}, plan()},
		"interrupted, and dead itself": {[]func(*healer.Case){
			top(0, func(m *facts.Mount) { m.Attr = placeholder }), recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 }),
		}, plan(shared)},
		"below a staged subvolume": {[]func(*healer.Case){func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/vols/v", "/vols/v"
			c.Record.MountPoints[0].Root, c.MountPoints[0].Stack[0].Root = "/vols/v/a/b", "/vols/v/a/b"
		}}, plan(func(p *facts.RebindPlan) { p.Sub = "a/b" })},
		"another pod's was made of it": {[]func(*healer.Case){func(c *healer.Case) {
			c.Record.MountPoints = append(c.Record.MountPoints, healer.MountPointRecord{Role: healer.RoleTarget, Path: "/k/pods/b/mount", Dev: facts.Dev{Minor: 40}})
			c.MountPoints[0].Want = c.Record.MountPoint(published)
		}}, plan()},
		"ID-mapped both": {[]func(*healer.Case){
			top(0, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap }), top(1, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap }),
		}, plan(func(p *facts.RebindPlan) { p.Attr |= facts.AttrIDMap })},
		"read-only both": {[]func(*healer.Case){top(0, func(m *facts.Mount) { m.SuperReadOnly = true }), top(1, func(m *facts.Mount) { m.SuperReadOnly = true })}, plan()},
		"staged over a dead one": {[]func(*healer.Case){func(c *healer.Case) {
			m := c.MountPoints[1].Stack[0]
			m.ID, m.OldID, m.Dev, m.FSType = 6, 6, previously, "fuse.y"
			c.MountPoints[1].Stack = append(c.MountPoints[1].Stack, m)
		}}, plan()},
		"a disk by another name": {[]func(*healer.Case){func(c *healer.Case) {
			was, now := facts.Dev{Major: 8, Minor: 50}, facts.Dev{Major: 8, Minor: 60}
			c.Superblocks = map[facts.Dev]facts.Superblock{was: c.Superblocks[previously], now: c.Superblocks[renewed]}
			c.MountPoints[0].Stack[0].Dev, c.MountPoints[1].Stack[0].Dev, c.MountPoints[1].Stack[0].Source = was, now, "/dev/sdc"
			c.Record.MountPoints[0].Dev, c.Record.MountPoints[1].Dev = was, was
		}}, plan()},
		"a full volume": {[]func(*healer.Case){of(renewed, func(sb *facts.Superblock) {
			sb.Space = facts.Space{Blocks: 100, Files: 100, FreeFiles: 5}
		})}, plan()},
		"a slow volume": {[]func(*healer.Case){of(renewed, func(sb *facts.Superblock) { sb.Answer.Late = 9 })}, plan()},
		"shut down":     {[]func(*healer.Case){of(previously, shutDown)}, plan(func(p *facts.RebindPlan) { p.Ended = true })},
	} {
		t.Run(name, func(t *testing.T) {
			c := with(append([]func(*healer.Case){outliving}, tc.change...)...)()
			h := &scribe{}
			s := step(t, h, c)
			if s.Refused != "" || s.Name != StepReplace || s.Cost != healer.Replace || s.Source != c.MountPoints[1].Dev() || s.MountPoint.Path != published || !slices.Equal(s.Heals, deadReasons) {
				t.Fatalf("%+v", s)
			}
			if err := s.Run(context.Background(), func(context.Context) error { return errRevalidate }); !errors.Is(err, errRevalidate) {
				t.Errorf("got %v", err)
			}
			tc.plan.Staged = c.MountPoints[1].Stack[0]
			if h.did != "replace" || !reflect.DeepEqual(h.plan, tc.plan) || !reflect.DeepEqual(h.on, c.MountPoints[0].Stack[0]) {
				t.Errorf("%s %+v on %+v\nwant %+v", h.did, h.plan, h.on, tc.plan)
			}
		})
	}
}

// What is wrong at another pod's mount point blocks no other mount point.
func TestReplaceBesideAnotherVolume(t *testing.T) {
	c := with(outliving, func(c *healer.Case) {
		p := c.MountPoints[0]
		p.Path, p.Want, p.PodUID = "/k/pods/b/mount", nil, "b"
		p.Stack = slices.Clone(p.Stack)
		p.Stack[0].Path, p.Stack[0].Dev = p.Path, renewed
		p.Inspect.VolData = &facts.VolData{DriverName: "d", VolumeHandle: "w"}
		c.MountPoints = append(c.MountPoints, p)
	})()
	if s := step(t, idle{t}, c); s.MountPoint.Path != published || s.Refused != "" {
		t.Errorf("%+v", s)
	}
}

func TestReplaceIsRefused(t *testing.T) {
	for _, tc := range []struct {
		why    string
		change []func(*healer.Case)
	}{
		{"never seen healthy on this node", []func(*healer.Case){unrecorded}},
		{"several mounts are stacked on the staging path", []func(*healer.Case){func(c *healer.Case) { c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2) }}},
		{"the staged mount is read-only", []func(*healer.Case){attr(1, placeholder), recorded(1, func(r *healer.MountPointRecord) { r.Attr = placeholder })}},
		{"the recorded staging path is another one", []func(*healer.Case){recorded(1, func(r *healer.MountPointRecord) { r.Path = "/k/other" })}},
		{"shows another directory than the recorded one", []func(*healer.Case){top(1, func(m *facts.Mount) { m.Root = "/x" })}},
		{"not healthy (Disconnected)", []func(*healer.Case){of(renewed, errno(syscall.ENOTCONN))}},
		{"not healthy (NotResponding)", []func(*healer.Case){of(renewed, func(sb *facts.Superblock) { sb.Answer = facts.Answer{} })}},
		{"not healthy (FilesystemShutdown)", []func(*healer.Case){of(renewed, shutDown)}},
		{"not healthy (WrongVolumeMounted)", []func(*healer.Case){func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }}},
		{"not healthy (WrongVolumeMounted)", []func(*healer.Case){of(renewed, func(sb *facts.Superblock) { sb.Source = "another" })}},
		{"the directory that the mount showed was deleted", []func(*healer.Case){top(0, func(m *facts.Mount) { m.RootDeleted = true })}},
		{"not known to be the staged filesystem", []func(*healer.Case){recorded(0, func(r *healer.MountPointRecord) { r.Dev.Minor++ })}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[:1]; c.MountPoints[1].Want = nil }}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[1:]; c.MountPoints[0].Want = nil }}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.MountPoints[0].Want = nil; c.Record.MountPoints[0].Dev.Minor++ }}},
		{"another source than the staged one", []func(*healer.Case){top(0, func(m *facts.Mount) { m.Source = "another" })}},
		{"the dead filesystem was read-only", []func(*healer.Case){top(0, func(m *facts.Mount) { m.SuperReadOnly = true })}},
		{"another ID mapping", []func(*healer.Case){top(0, func(m *facts.Mount) { m.Attr |= facts.AttrIDMap })}},
		{"another ID mapping", []func(*healer.Case){attr(1, facts.AttrIDMap)}},
		{"WrongVolumeMounted: kubelet's vol_data.json", []func(*healer.Case){func(c *healer.Case) { c.MountPoints[0].Inspect.VolData.VolumeHandle = "w" }}},
		{"WrongVolumeMounted: it shows the directory", []func(*healer.Case){recorded(0, func(r *healer.MountPointRecord) { r.Root = "/x" })}},
		{"how the mount point was mounted is not known", []func(*healer.Case){attr(0, placeholder), func(c *healer.Case) { c.MountPoints[0].Want = nil }}},
		{"does not lie below the staged one", []func(*healer.Case){func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/su", "/su"
		}}},
	} {
		s := step(t, idle{t}, with(append([]func(*healer.Case){outliving}, tc.change...)...)())
		if s.Name != StepReplace || s.Run != nil || !strings.Contains(s.Refused, tc.why) {
			t.Errorf("%s refused with %q, want %q", s.Name, s.Refused, tc.why)
		}
	}
	stale := with(outliving, of(previously, errno(syscall.ESTALE)))()
	if s := step(t, &scribe{old: true}, stale); s.Run != nil || !strings.HasPrefix(s.Refused, "ReplaceNotSupported") || !strings.Contains(s.Refused, "delete the pod") {
		t.Errorf("an old kernel: %q", s.Refused)
	}
}

// Where only a cover is possible, what was aborted stays as it is.
func TestCoverOnlyWhatIsGone(t *testing.T) {
	for e, want := range map[syscall.Errno]string{syscall.ENOTCONN: StepCover, syscall.ECONNABORTED: StepReplace} {
		s := step(t, &scribe{old: true}, with(outliving, of(previously, errno(e)))())
		if s.Name != want || (s.Refused == "") != (want == StepCover) {
			t.Errorf("%s: %s, refused with %q", facts.ErrnoName(e), s.Name, s.Refused)
		}
	}
}

// The first reason is the one that a person can do something about.
func TestUnfit(t *testing.T) {
	c := with(outliving, stagingLost)()
	staged, _ := c.Staged()
	if why := unfit(c, staged); why != "the staged mount is gone" {
		t.Errorf("nothing staging: %q", why)
	}
	c = with(outliving)()
	staged, _ = c.Staged()
	for status, harm := range map[healer.Status]bool{healer.Degraded: false, healer.Inaccessible: true, healer.DataLoss: true} {
		c.Found = []healer.Condition{
			{MountPoint: staged.Path, Reason: healer.DeviceMissing, Status: status}, {MountPoint: published, Reason: healer.Disconnected, Status: healer.Inaccessible},
		}
		why := unfit(c, staged)
		if (why != "") != harm {
			t.Errorf("%s at the staging mount point: %q", status, why)
		}
	}
}

func TestNothingIsReplacedFor(t *testing.T) {
	for name, change := range map[string]func(*healer.Case){
		"the only instance":      func(c *healer.Case) { c.MountPoints[1].Stack[0].Dev = previously },
		"nothing staged":         stagingLost,
		"no staging mount point": func(c *healer.Case) { c.MountPoints = c.MountPoints[:1] },
		"one that is silent":     of(previously, func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, TimedOut: true} }),
		"one that refuses":       of(previously, errno(syscall.EACCES)),
		"one that answers":       of(previously, errno(0)),
		"another type":           of(previously, func(sb *facts.Superblock) { sb.FSType = "overlay" }),
		"a staged one, of two": func(c *healer.Case) {
			c.MountPoints[0].Role = healer.RoleStaging
			c.MountPoints[0], c.MountPoints[1] = c.MountPoints[1], c.MountPoints[0]
		},
		"a staged one":          func(c *healer.Case) { c.MountPoints[0].Role = healer.RoleStaging },
		"what failed otherwise": of(previously, func(sb *facts.Superblock) { sb.Answer.Errno, sb.ReadOnly = 0, true }),
	} {
		f, err := New(idle{t}).Examine(with(outliving, change)())
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
		"the live one below":         {below: []func(*facts.Mount){func(*facts.Mount) {}}},
		"dead as well":               {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev = previously }}},
		"three of them":              {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev = previously }, func(*facts.Mount) {}}},
		"ours, interrupted":          {below: []func(*facts.Mount){func(m *facts.Mount) { m.Attr = placeholder }}},
		"another filesystem":         {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev.Minor, m.FSType = 99, "ext4" }}, why: "is not the staged filesystem"},
		"another directory":          {below: []func(*facts.Mount){func(m *facts.Mount) { m.Root = "/x" }}, why: "shows another directory"},
		"dead, of another directory": {below: []func(*facts.Mount){func(m *facts.Mount) { m.Dev, m.Root = previously, "/x" }}, why: "is not the staged filesystem"},
	} {
		c := with(outliving)()
		for _, change := range tc.below {
			under(change)(&c)
		}
		h := &scribe{}
		s := step(t, h, c)
		if s.Name != StepUnmountDeadTop || s.Cost != healer.Replace || s.Source != renewed || !s.CanHeal(healer.Disconnected) || !s.CanHeal(healer.StackedMounts) {
			t.Fatalf("%s: %+v", name, s)
		}
		if tc.why != "" {
			if s.Run != nil || !strings.Contains(s.Refused, tc.why) {
				t.Errorf("%s: refused with %q", name, s.Refused)
			}
			continue
		}
		if err := s.Run(context.Background(), func(context.Context) error { return errRevalidate }); !errors.Is(err, errRevalidate) {
			t.Errorf("%s: got %v", name, err)
		}
		if stack := c.MountPoints[0].Stack; h.did != "unmount-dead-top" || !reflect.DeepEqual(h.on, stack[0]) || h.below != stack[1].Ref() {
			t.Errorf("%s: %s %+v off %+v", name, h.did, h.on, h.below)
		}
	}
}

// covered puts dead mounts beneath one of the renewed volume at the target.
func covered(devs ...facts.Dev) func(*healer.Case) {
	return func(c *healer.Case) {
		m := c.MountPoints[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, renewed
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
	c := with(outliving, covered(previously))()
	f, err := New(idle{t}).Examine(c)
	if err != nil || len(f.Steps) != 0 {
		t.Errorf("%+v, %v", f.Steps, err)
	}
	at := slices.IndexFunc(f.Conditions, func(c healer.Condition) bool { return c.Reason == healer.StackedMounts })
	if at < 0 || f.Conditions[at].Acute || f.Conditions[at].Status != healer.Degraded ||
		!strings.Contains(f.Conditions[at].Message, "covers another filesystem instance") || f.Conditions[at].Advice != adviceRestage {
		t.Errorf("%+v", f.Conditions)
	}
}
