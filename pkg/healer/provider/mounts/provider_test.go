package mounts

import (
	"cmp"
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

// scribe is a host that notes the plan of a step and asks still.
type scribe struct {
	did   string
	plan  facts.PlacePlan
	on    facts.Mount
	below facts.Ref
	ended bool
	// old is a kernel that cannot put a mount beneath another.
	old bool
	// acted counts what was changed.
	acted int
}

func (s *scribe) act(ctx context.Context, revalidate func(context.Context) error) error {
	err := revalidate(ctx)
	if err == nil {
		s.acted++
	}
	return err
}

func (s *scribe) Place(ctx context.Context, plan facts.PlacePlan, revalidate func(context.Context) error) error {
	s.did = [...]string{facts.OnDirectory: "rebind", facts.BeneathDead: "replace", facts.OnDead: "cover"}[plan.Position]
	if plan.Placed != (facts.Ref{}) {
		s.did = "finish"
	}
	s.plan = plan
	return s.act(ctx, revalidate)
}

func (s *scribe) UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error {
	s.did, s.on, s.below, s.ended = "unmount-dead-top", plan.Top, plan.Below, plan.Ended
	if plan.Placeholder {
		s.did = "take off"
	}
	return s.act(ctx, revalidate)
}

func (s *scribe) CanReplace() bool { return !s.old }

func (s *scribe) CanCover() bool { return true }

// step returns the only step offered for a case.
func step(t *testing.T, h Host, c healer.Case) healer.Step {
	t.Helper()
	f, err := New(h).Examine(c)
	if err != nil || len(f.Steps) != 1 {
		t.Fatalf("%d steps, %v", len(f.Steps), err)
	}
	return f.Steps[0]
}

// placePlan is how the healthy volume is to be mounted again at its target, with changes.
func placePlan(change ...func(*facts.PlacePlan)) facts.PlacePlan {
	p := facts.PlacePlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true, Target: cases.Published}
	for _, c := range change {
		c(&p)
	}
	return p
}

func shared(p *facts.PlacePlan) { p.Private, p.Shared = false, true }
func slave(p *facts.PlacePlan)  { p.Private = false }

var rebindExamples = map[string]struct {
	change []cases.Change
	did    string          // none: rebind
	plan   facts.PlacePlan // none: placePlan()
}{
	"a subdirectory": {change: []cases.Change{cases.Lost}},
	"the whole volume": {
		change: []cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Root = "/" })},
		plan:   placePlan(func(p *facts.PlacePlan) { p.Sub = "" }),
	},
	"below a staged subvolume": {
		change: []cases.Change{cases.Lost, func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.Record.MountPoints[0].Root = "/vols/v", "/vols/v/a/b"
			c.MountPoints[1].Stack[0].Root = "/vols/v"
		}},
		plan: placePlan(func(p *facts.PlacePlan) { p.Sub = "a/b" }),
	},
	"read-only": {
		change: []cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly })},
		plan:   placePlan(func(p *facts.PlacePlan) { p.Attr = facts.AttrReadOnly }),
	},
	"shared": {
		change: []cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 })},
		plan:   placePlan(shared),
	},
	"slave": {
		change: []cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Master = 3 })},
		plan:   placePlan(slave),
	},
	// A pod that waits for its mount is not helped by waiting longer.
	"a full volume": {change: []cases.Change{cases.Lost, left(0, 0)}},
	"a slow volume": {change: []cases.Change{cases.Lost, late(9)}},
	"interrupted, on a full and slow volume": {
		change: []cases.Change{placeholderAlone, left(0, 0), late(9)},
		did:    "finish",
	},
	"a filesystem that counted errors": {change: []cases.Change{cases.Lost, left(0, 0), late(3), counted(1, after)}},
	"a device that is write-protected": {change: []cases.Change{cases.Lost, device(func(d *facts.BlockDevice) { d.ReadOnly = true })}},
	"a staged mount that is read-only": {change: []cases.Change{cases.Lost, attr(1, facts.AttrReadOnly)}},
	"old errors":                       {change: []cases.Change{cases.Lost, counted(7, after), baseline}},
	"interrupted":                      {change: []cases.Change{placeholderAlone}, did: "finish"},
}

func TestRebind(t *testing.T) {
	for name, tc := range rebindExamples {
		t.Run(name, func(t *testing.T) {
			c := cases.With(tc.change...)()
			h := &scribe{}
			s := step(t, h, c)
			if s.Refused != "" || s.Name != StepRebind || s.Cost != healer.Rebind || s.Source != cases.Disk || s.MountPoint.Path != cases.Published ||
				!slices.Contains(s.Heals, healer.NotMounted) {
				t.Fatalf("%+v", s)
			}
			if err := s.Run(context.Background(), func(context.Context) error { return cases.ErrRevalidate }); !errors.Is(err, cases.ErrRevalidate) {
				t.Errorf("got %v", err)
			}
			if tc.plan.Target == "" {
				tc.plan = placePlan()
			}
			tc.plan.Staged, tc.did = c.MountPoints[1].Stack[0], cmp.Or(tc.did, "rebind")
			if tc.did == "finish" {
				tc.plan.Placed = c.MountPoints[0].Stack[0].Ref()
			}
			if h.did != tc.did || !reflect.DeepEqual(h.plan, tc.plan) {
				t.Errorf("%s %+v\nwant %s %+v", h.did, h.plan, tc.did, tc.plan)
			}
		})
	}
}

var refusedRebinds = []struct {
	why    string
	change []cases.Change
}{
	{"never seen healthy at this mount point", []cases.Change{cases.Unrecorded, cases.Lost}},
	{"would hide the files", []cases.Change{cases.Lost, writtenInto}},
	{
		"never seen healthy at this mount point",
		[]cases.Change{cases.Lost, func(c *healer.Case) { c.MountPoints[0].Want = nil }},
	},
	{
		"no staged mount to bind from",
		[]cases.Change{cases.Lost, func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[:1] }},
	},
	{"the staged mount is gone", []cases.Change{cases.Lost, cases.StagingLost}},
	{
		"several mounts are stacked on the staging path",
		[]cases.Change{cases.Lost, func(c *healer.Case) {
			c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2)
		}},
	},
	{
		"the recorded staging path is another one",
		[]cases.Change{cases.Lost, recorded(1, func(r *healer.MountPointRecord) { r.Path = "/k/other" })},
	},
	{
		"was not the staged filesystem",
		[]cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Dev.Minor++ })},
	},
	{
		"another ID mapping",
		[]cases.Change{cases.Lost, recorded(0, func(r *healer.MountPointRecord) { r.Attr |= facts.AttrIDMap })},
	},
	{"another ID mapping", []cases.Change{cases.Lost, attr(1, facts.AttrIDMap)}},
	{"not healthy (Disconnected)", []cases.Change{cases.Lost, probe(syscall.ENOTCONN)}},
	{
		"not healthy (FilesystemShutdown)",
		[]cases.Change{cases.Lost, superblock(func(sb *healer.Superblock) { sb.Shutdown = true })},
	},
	{
		"not healthy (WrongVolumeMounted)",
		[]cases.Change{cases.Lost, func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }},
	},
	{"not healthy (IOError)", []cases.Change{placeholderAlone, probe(syscall.EIO)}},
	{"not healthy (NotResponding)", []cases.Change{cases.Lost, writing("jbd2_log_wait_commit")}},
	{"not healthy (DeviceSizeChanged)", []cases.Change{cases.Lost, sized(1)}},
	{"not healthy (PermissionDenied)", []cases.Change{cases.Lost, probe(syscall.EACCES)}},
	{
		"does not lie below the staged one",
		[]cases.Change{cases.Lost, func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/su", "/su"
		}},
	},
	{
		"not healthy (StaleFileHandle)",
		[]cases.Change{placeholderAlone, func(c *healer.Case) {
			c.MountPoints[0].Stack[0].RootDeleted = true
		}},
	},
}

func TestRebindIsRefused(t *testing.T) {
	for _, tc := range refusedRebinds {
		s := step(t, idle{t}, cases.With(tc.change...)())
		if s.Run != nil || !strings.Contains(s.Refused, tc.why) {
			t.Errorf("refused with %q, want %q", s.Refused, tc.why)
		}
	}
}

// A superblock is judged once, at the first mount point that shows it: a fault seen
// at another pod's mount point is one of the staged filesystem all the same.
func TestRebindOfASickFilesystemSeenAtAnotherMountPoint(t *testing.T) {
	const other = "/k/pods/b/mount"
	secondPod := func(c *healer.Case) {
		p := c.MountPoints[0]
		p.Path, p.Stack = other, []facts.Mount{cases.Mount(other, "/sub", facts.AttrNoExec)}
		r := *c.Record.MountPoint(cases.Published)
		r.Path = other
		c.Record.MountPoints = append(c.Record.MountPoints, r)
		p.Want = c.Record.MountPoint(other)
		for i := range c.MountPoints {
			c.MountPoints[i].Want = c.Record.MountPoint(c.MountPoints[i].Path)
		}
		// Asked about the other pod, this one's mount point is the last.
		c.MountPoints = []healer.MountPoint{p, c.MountPoints[1], c.MountPoints[0]}
		c.MountPoints[2].Stack = nil
	}
	for _, e := range []syscall.Errno{syscall.EIO, syscall.ENOTCONN} {
		if s := step(t, idle{t}, cases.With(secondPod, probe(e))()); s.Refused == "" {
			t.Errorf("%v: the sick filesystem is to be bound at %s", e, s.MountPoint.Path)
		}
	}
	if s := step(t, idle{t}, cases.With(secondPod)()); s.Refused != "" || s.MountPoint.Path != cases.Published {
		t.Errorf("%+v", s)
	}
}

func TestUnmountDuplicate(t *testing.T) {
	c := cases.With(placeholderOnTop)()
	h := &scribe{}
	s := step(t, h, c)
	if s.Name != StepUnmountDuplicate || s.Refused != "" || s.Source != cases.Disk || !slices.Equal(s.Heals, []healer.Reason{healer.StackedMounts}) {
		t.Fatalf("%+v", s)
	}
	if err := s.Run(context.Background(), func(context.Context) error { return cases.ErrRevalidate }); !errors.Is(err, cases.ErrRevalidate) {
		t.Errorf("got %v", err)
	}
	if h.did != "take off" || !reflect.DeepEqual(h.on, c.MountPoints[0].Stack[0]) {
		t.Errorf("%s %+v", h.did, h.on)
	}
}

func TestNothingIsOfferedFor(t *testing.T) {
	for name, build := range map[string]func() healer.Case{
		"a healthy volume":        cases.Healthy,
		"the staging mount point": cases.With(cases.StagingLost),
		"a foreign stack":         cases.With(func(c *healer.Case) { c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 2) }),
		"a stack of placeholders": cases.With(placeholderAlone, placeholderOnTop),
		"another root below":      cases.With(placeholderOnTop, func(c *healer.Case) { c.MountPoints[0].Stack[1].Root = "/x" }),
		"a dead filesystem":       cases.With(probe(syscall.EIO)),
		"a full volume":           cases.With(left(0, 0)),
		"a slow volume":           cases.With(late(9)),
		"a frozen volume":         cases.With(writing("percpu_rwsem_wait")),
		"errors":                  cases.With(counted(1, after)),
		"a read-only mount":       cases.With(attr(0, facts.AttrReadOnly)),
		"placeholder in staging":  cases.With(func(c *healer.Case) { c.MountPoints[1].Stack[0].Attr = cases.Placeholder }),
		"an intended placeholder": cases.With(recorded(0, func(r *healer.MountPointRecord) { r.Attr = cases.Placeholder }), attr(0, cases.Placeholder)),
	} {
		f, err := New(idle{t}).Examine(build())
		if err != nil || len(f.Steps) != 0 {
			t.Errorf("%s: %+v, %v", name, f.Steps, err)
		}
	}
}
