package mounts

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

var replaceExamples = []example{
	{"outlived", with(outliving), []string{"Disconnected! published: ENOTCONN"}},
	{"outlived, stale", with(outliving, of(formerly, errno(syscall.ESTALE))), []string{"StaleFileHandle! published: ESTALE"}},
	{"outlived, I/O error", with(outliving, of(formerly, errno(syscall.EIO))), []string{"IOError! published: EIO"}},
	{"outlived, shut down", with(outliving, of(formerly, shutDown)), []string{"FilesystemShutdown! published:"}},
	{"outlived, and the next one is dead too", with(outliving, of(renewed, errno(syscall.ENOTCONN))), []string{"Disconnected! published:", "Disconnected staged:"}},
	// What is behind those may come back by itself.
	{"another one that is silent", with(outliving, of(formerly, func(sb *host.Superblock) { sb.Answer = host.Answer{Asked: true, Silent: true} })), []string{"NotResponding published:"}},
	{"another one that refuses", with(outliving, of(formerly, errno(syscall.EACCES))), []string{"PermissionDenied published:"}},
	{"a live one over the dead", with(outliving, under(func(*host.Mount) {}), func(c *healer.Case) { slices.Reverse(c.Places[0].Stack) }), []string{"StackedMounts published: 2 mounts stand on the path, and the top one covers another filesystem instance"}},
	{"a live one over two dead ones", with(outliving, covered(formerly, host.Dev{Minor: 49})), []string{"StackedMounts published: 3 mounts stand on the path, and the top one covers"}},
	{"a dead one over the live", with(outliving, under(func(*host.Mount) {})), []string{"StackedMounts published:", "Disconnected! published:"}},
	{"an overlay over a dead upper", with(outliving, of(formerly, func(sb *host.Superblock) { sb.FSType = "overlay" })), []string{"WrongVolumeMounted published:", "Disconnected published:"}},
}

func shutDown(sb *host.Superblock) { sb.Shutdown, sb.Answer.Errno = true, 0 }

func TestReplaceConditions(t *testing.T) {
	for _, tc := range replaceExamples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// One dead instance is to be replaced at each of its places.
func TestEachDeadPlaceHasItsOwnStep(t *testing.T) {
	const other = "/k/pods/b/mount"
	c := with(outliving, func(c *healer.Case) {
		p := c.Places[0]
		p.Path, p.Want, p.PodUID = other, nil, "b"
		p.Stack = slices.Clone(p.Stack)
		p.Stack[0].Path = other
		c.Places = append(c.Places, p)
	})()
	f, err := New(idle{t}, ContainersFUSE).Examine(context.Background(), c)
	if err != nil || len(f.Conditions) != 2 || len(f.Steps) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	for i, path := range []string{published, other} {
		if f.Conditions[i].Place != path || !f.Conditions[i].Acute || f.Steps[i].Place.Path != path || f.Steps[i].Refused != "" {
			t.Errorf("%+v, %+v", f.Conditions[i], f.Steps[i])
		}
	}
}

func TestReplace(t *testing.T) {
	plan := func(change ...func(*host.RebindPlan)) host.RebindPlan {
		p := host.RebindPlan{Sub: "sub", Attr: host.AttrNoExec, Private: true, Target: published}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	shared := func(p *host.RebindPlan) { p.Private, p.Shared = false, true }
	slave := func(p *host.RebindPlan) { p.Private = false }
	for name, tc := range map[string]struct {
		change []func(*healer.Case)
		plan   host.RebindPlan
	}{
		"a subdirectory": {nil, plan()},
		"the whole volume": {[]func(*healer.Case){
			top(0, func(m *host.Mount) { m.Root = "/" }), recorded(0, func(r *healer.PlaceRecord) { r.Root = "/" }),
		}, plan(func(p *host.RebindPlan) { p.Sub = "" })},
		// The dead mount tells itself how it was mounted.
		"not as recorded": {[]func(*healer.Case){top(0, func(m *host.Mount) { m.Attr = host.AttrReadOnly | host.AttrNoSUID })}, plan(func(p *host.RebindPlan) {
			p.Attr = host.AttrReadOnly | host.AttrNoSUID
		})},
		"shared":                           {[]func(*healer.Case){top(0, func(m *host.Mount) { m.Propagation.Shared = 3 })}, plan(shared)},
		"slave":                            {[]func(*healer.Case){top(0, func(m *host.Mount) { m.Propagation.Master = 3 })}, plan(slave)},
		"slave and shared":                 {[]func(*healer.Case){top(0, func(m *host.Mount) { m.Propagation = host.Propagation{Shared: 3, Master: 4} })}, plan(shared)},
		"shared when it was recorded only": {[]func(*healer.Case){recorded(0, func(r *healer.PlaceRecord) { r.Propagation.Shared = 3 })}, plan()},
		"not recorded at this place":       {[]func(*healer.Case){func(c *healer.Case) { c.Places[0].Want = nil }}, plan()},
		"interrupted, and dead itself": {[]func(*healer.Case){
			top(0, func(m *host.Mount) { m.Attr = interim }), recorded(0, func(r *healer.PlaceRecord) { r.Propagation.Shared = 3 }),
		}, plan(shared)},
		"below a staged subvolume": {[]func(*healer.Case){func(c *healer.Case) {
			c.Record.Places[1].Root, c.Places[1].Stack[0].Root = "/vols/v", "/vols/v"
			c.Record.Places[0].Root, c.Places[0].Stack[0].Root = "/vols/v/a/b", "/vols/v/a/b"
		}}, plan(func(p *host.RebindPlan) { p.Sub = "a/b" })},
		"another pod's was made of it": {[]func(*healer.Case){func(c *healer.Case) {
			c.Record.Places = append(c.Record.Places, healer.PlaceRecord{Role: healer.Published, Path: "/k/pods/b/mount", Dev: host.Dev{Minor: 40}})
			c.Places[0].Want = c.Record.Place(published)
		}}, plan()},
		"ID-mapped both": {[]func(*healer.Case){
			top(0, func(m *host.Mount) { m.Attr |= host.AttrIDMap }), top(1, func(m *host.Mount) { m.Attr |= host.AttrIDMap }),
		}, plan(func(p *host.RebindPlan) { p.Attr |= host.AttrIDMap })},
		"read-only both": {[]func(*healer.Case){top(0, func(m *host.Mount) { m.SuperReadOnly = true }), top(1, func(m *host.Mount) { m.SuperReadOnly = true })}, plan()},
		"staged over a dead one": {[]func(*healer.Case){func(c *healer.Case) {
			m := c.Places[1].Stack[0]
			m.ID, m.OldID, m.Dev, m.FSType = 6, 6, formerly, "fuse.y"
			c.Places[1].Stack = append(c.Places[1].Stack, m)
		}}, plan()},
		"a disk by another name": {[]func(*healer.Case){func(c *healer.Case) {
			was, now := host.Dev{Major: 8, Minor: 50}, host.Dev{Major: 8, Minor: 60}
			c.Superblocks = map[host.Dev]host.Superblock{was: c.Superblocks[formerly], now: c.Superblocks[renewed]}
			c.Places[0].Stack[0].Dev, c.Places[1].Stack[0].Dev, c.Places[1].Stack[0].Source = was, now, "/dev/sdc"
			c.Record.Places[0].Dev, c.Record.Places[1].Dev = was, was
		}}, plan()},
		"a full volume": {[]func(*healer.Case){of(renewed, func(sb *host.Superblock) {
			sb.Space = host.Space{BlockSize: 1, Blocks: 100, Files: 100, FreeFiles: 5}
		})}, plan()},
		"a slow volume": {[]func(*healer.Case){of(renewed, func(sb *host.Superblock) { sb.Answer.Late = 9 })}, plan()},
		"shut down":     {[]func(*healer.Case){of(formerly, shutDown)}, plan(func(p *host.RebindPlan) { p.Ended = true })},
	} {
		t.Run(name, func(t *testing.T) {
			c := with(append([]func(*healer.Case){outliving}, tc.change...)...)()
			h := &scribe{}
			s := step(t, h, c)
			if s.Refused != "" || s.Name != StepReplace || s.Cost != healer.Replace || s.Source != c.Places[1].Dev() || s.Place.Path != published || !slices.Equal(s.Heals, deadReasons) {
				t.Fatalf("%+v", s)
			}
			if err := s.Run(context.Background(), func(context.Context) error { return errStill }); !errors.Is(err, errStill) {
				t.Errorf("got %v", err)
			}
			tc.plan.Staged = c.Places[1].Stack[0]
			if h.did != "replace" || !reflect.DeepEqual(h.plan, tc.plan) || !reflect.DeepEqual(h.on, c.Places[0].Stack[0]) {
				t.Errorf("%s %+v on %+v\nwant %+v", h.did, h.plan, h.on, tc.plan)
			}
		})
	}
}

// What is wrong at another pod's place keeps nobody else back.
func TestReplaceBesideAnotherVolume(t *testing.T) {
	c := with(outliving, func(c *healer.Case) {
		p := c.Places[0]
		p.Path, p.Want, p.PodUID = "/k/pods/b/mount", nil, "b"
		p.Stack = slices.Clone(p.Stack)
		p.Stack[0].Path, p.Stack[0].Dev = p.Path, renewed
		p.Look.VolData = &host.VolData{DriverName: "d", VolumeHandle: "w"}
		c.Places = append(c.Places, p)
	})()
	if s := step(t, idle{t}, c); s.Place.Path != published || s.Refused != "" {
		t.Errorf("%+v", s)
	}
}

func TestReplaceIsRefused(t *testing.T) {
	for _, tc := range []struct {
		why    string
		change []func(*healer.Case)
	}{
		{"never seen healthy on this node", []func(*healer.Case){unrecorded}},
		{"several mounts stand on the staging path", []func(*healer.Case){func(c *healer.Case) { c.Places[1].Stack = slices.Repeat(c.Places[1].Stack, 2) }}},
		{"the staged mount is read-only", []func(*healer.Case){attr(1, interim), recorded(1, func(r *healer.PlaceRecord) { r.Attr = interim })}},
		{"the recorded staging path is another one", []func(*healer.Case){recorded(1, func(r *healer.PlaceRecord) { r.Path = "/k/other" })}},
		{"shows another directory than the recorded one", []func(*healer.Case){top(1, func(m *host.Mount) { m.Root = "/x" })}},
		{"not healthy (Disconnected)", []func(*healer.Case){of(renewed, errno(syscall.ENOTCONN))}},
		{"not healthy (NotResponding)", []func(*healer.Case){of(renewed, func(sb *host.Superblock) { sb.Answer = host.Answer{} })}},
		{"not healthy (FilesystemShutdown)", []func(*healer.Case){of(renewed, shutDown)}},
		{"not healthy (WrongVolumeMounted)", []func(*healer.Case){func(c *healer.Case) { c.Places[1].Look.VolData.VolumeHandle = "w" }}},
		{"not healthy (WrongVolumeMounted)", []func(*healer.Case){of(renewed, func(sb *host.Superblock) { sb.Source = "another" })}},
		{"the directory that the mount showed was deleted", []func(*healer.Case){top(0, func(m *host.Mount) { m.RootDeleted = true })}},
		{"not known to be the staged filesystem", []func(*healer.Case){recorded(0, func(r *healer.PlaceRecord) { r.Dev.Minor++ })}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.Record.Places = c.Record.Places[:1]; c.Places[1].Want = nil }}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.Record.Places = c.Record.Places[1:]; c.Places[0].Want = nil }}},
		{"not known to be the staged filesystem", []func(*healer.Case){func(c *healer.Case) { c.Places[0].Want = nil; c.Record.Places[0].Dev.Minor++ }}},
		{"another source than the staged one", []func(*healer.Case){top(0, func(m *host.Mount) { m.Source = "another" })}},
		{"the dead filesystem was read-only", []func(*healer.Case){top(0, func(m *host.Mount) { m.SuperReadOnly = true })}},
		{"another ID mapping", []func(*healer.Case){top(0, func(m *host.Mount) { m.Attr |= host.AttrIDMap })}},
		{"another ID mapping", []func(*healer.Case){attr(1, host.AttrIDMap)}},
		{"WrongVolumeMounted: kubelet's vol_data.json", []func(*healer.Case){func(c *healer.Case) { c.Places[0].Look.VolData.VolumeHandle = "w" }}},
		{"WrongVolumeMounted: it shows the directory", []func(*healer.Case){recorded(0, func(r *healer.PlaceRecord) { r.Root = "/x" })}},
		{"how the place was mounted is not known", []func(*healer.Case){attr(0, interim), func(c *healer.Case) { c.Places[0].Want = nil }}},
		{"does not lie below the staged one", []func(*healer.Case){func(c *healer.Case) {
			c.Record.Places[1].Root, c.Places[1].Stack[0].Root = "/su", "/su"
		}}},
	} {
		s := step(t, idle{t}, with(append([]func(*healer.Case){outliving}, tc.change...)...)())
		if s.Name != StepReplace || s.Run != nil || !strings.Contains(s.Refused, tc.why) {
			t.Errorf("%s refused with %q, want %q", s.Name, s.Refused, tc.why)
		}
	}
	stale := with(outliving, of(formerly, errno(syscall.ESTALE)))()
	if s := step(t, &scribe{old: true}, stale); s.Run != nil || !strings.HasPrefix(s.Refused, "ReplaceNotSupported") || !strings.Contains(s.Refused, "delete the pod") {
		t.Errorf("an old kernel: %q", s.Refused)
	}
}

// The first reason is the one that a person can do something about.
func TestUnfit(t *testing.T) {
	c := with(outliving, stagingLost)()
	staged, _ := c.Staged()
	if why := unfit(c, staged, nil); why != "the staged mount is gone" {
		t.Errorf("nothing staged: %q", why)
	}
	c = with(outliving)()
	staged, _ = c.Staged()
	for status, harm := range map[healer.Status]bool{healer.Degraded: false, healer.Inaccessible: true, healer.DataLoss: true} {
		why := unfit(c, staged, []healer.Condition{
			{Place: staged.Path, Reason: healer.DeviceMissing, Status: status}, {Place: published, Reason: healer.Disconnected, Status: healer.Inaccessible},
		})
		if (why != "") != harm {
			t.Errorf("%s at the staged place: %q", status, why)
		}
	}
}

func TestNothingIsReplacedFor(t *testing.T) {
	for name, change := range map[string]func(*healer.Case){
		"the only instance":  func(c *healer.Case) { c.Places[1].Stack[0].Dev = formerly },
		"nothing staged":     stagingLost,
		"no staged place":    func(c *healer.Case) { c.Places = c.Places[:1] },
		"one that is silent": of(formerly, func(sb *host.Superblock) { sb.Answer = host.Answer{Asked: true, Silent: true} }),
		"one that refuses":   of(formerly, errno(syscall.EACCES)),
		"one that answers":   of(formerly, errno(0)),
		"another type":       of(formerly, func(sb *host.Superblock) { sb.FSType = "overlay" }),
		"a staged one, of two": func(c *healer.Case) {
			c.Places[0].Role = healer.Staged
			c.Places[0], c.Places[1] = c.Places[1], c.Places[0]
		},
		"a staged one":          func(c *healer.Case) { c.Places[0].Role = healer.Staged },
		"what failed otherwise": of(formerly, func(sb *host.Superblock) { sb.Answer.Errno, sb.ReadOnly = 0, true }),
	} {
		f, err := New(idle{t}, ContainersFUSE).Examine(context.Background(), with(outliving, change)())
		if err != nil || len(f.Steps) != 0 {
			t.Errorf("%s: %+v, %v", name, f.Steps, err)
		}
	}
}

func TestUncover(t *testing.T) {
	for name, tc := range map[string]struct {
		below []func(*host.Mount)
		why   string
	}{
		"the live one below":         {below: []func(*host.Mount){func(*host.Mount) {}}},
		"dead as well":               {below: []func(*host.Mount){func(m *host.Mount) { m.Dev = formerly }}},
		"three of them":              {below: []func(*host.Mount){func(m *host.Mount) { m.Dev = formerly }, func(*host.Mount) {}}},
		"ours, interrupted":          {below: []func(*host.Mount){func(m *host.Mount) { m.Attr = interim }}},
		"another filesystem":         {below: []func(*host.Mount){func(m *host.Mount) { m.Dev.Minor, m.FSType = 99, "ext4" }}, why: "is not the staged filesystem"},
		"another directory":          {below: []func(*host.Mount){func(m *host.Mount) { m.Root = "/x" }}, why: "shows another directory"},
		"dead, of another directory": {below: []func(*host.Mount){func(m *host.Mount) { m.Dev, m.Root = formerly, "/x" }}, why: "is not the staged filesystem"},
	} {
		c := with(outliving)()
		for _, change := range tc.below {
			under(change)(&c)
		}
		h := &scribe{}
		s := step(t, h, c)
		if s.Name != StepUncover || s.Cost != healer.Replace || s.Source != renewed || !s.CanHeal(healer.Disconnected) || !s.CanHeal(healer.StackedMounts) {
			t.Fatalf("%s: %+v", name, s)
		}
		if tc.why != "" {
			if s.Run != nil || !strings.Contains(s.Refused, tc.why) {
				t.Errorf("%s: refused with %q", name, s.Refused)
			}
			continue
		}
		if err := s.Run(context.Background(), func(context.Context) error { return errStill }); !errors.Is(err, errStill) {
			t.Errorf("%s: got %v", name, err)
		}
		if stack := c.Places[0].Stack; h.did != "uncover" || !reflect.DeepEqual(h.on, stack[0]) || !reflect.DeepEqual(h.below, stack[1]) {
			t.Errorf("%s: %s %+v off %+v", name, h.did, h.on, h.below)
		}
	}
}

// covered puts dead mounts beneath one of the renewed volume at the published place.
func covered(devs ...host.Dev) func(*healer.Case) {
	return func(c *healer.Case) {
		m := c.Places[0].Stack[0]
		m.ID, m.OldID, m.Dev = 9, 9, renewed
		c.Places[0].Stack = []host.Mount{m}
		for i, d := range devs {
			m.ID, m.OldID, m.Dev = uint64(4-i), 4-i, d
			c.Places[0].Stack = append(c.Places[0].Stack, m)
		}
	}
}

// A driver that finds its mount dead may mount on top of it. What a mount covers has
// no path, so it is only told.
func TestDeadBeneathALiveOne(t *testing.T) {
	c := with(outliving, covered(formerly))()
	f, err := New(idle{t}, ContainersFUSE).Examine(context.Background(), c)
	if err != nil || len(f.Steps) != 0 {
		t.Errorf("%+v, %v", f.Steps, err)
	}
	at := slices.IndexFunc(f.Conditions, func(c healer.Condition) bool { return c.Reason == healer.StackedMounts })
	if at < 0 || f.Conditions[at].Acute || f.Conditions[at].Status != healer.Degraded || !strings.Contains(f.Conditions[at].Message, "covers another filesystem instance") || f.Conditions[at].Advice != adviceRestage {
		t.Errorf("%+v", f.Conditions)
	}
}
