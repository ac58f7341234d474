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

// scribe is a host that notes the plan of a step and asks still.
type scribe struct {
	did   string
	plan  facts.RebindPlan
	on    facts.Mount
	below facts.Ref
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

func (s *scribe) Rebind(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error {
	s.did, s.plan = "rebind", plan
	return s.act(ctx, revalidate)
}

func (s *scribe) Cover(ctx context.Context, plan facts.RebindPlan, revalidate func(context.Context) error) error {
	s.did, s.plan = "cover", plan
	return s.act(ctx, revalidate)
}

func (s *scribe) Finish(ctx context.Context, plan facts.RebindPlan, on facts.Mount, revalidate func(context.Context) error) error {
	s.did, s.plan, s.on = "finish", plan, on
	return s.act(ctx, revalidate)
}

func (s *scribe) Replace(ctx context.Context, plan facts.RebindPlan, on facts.Mount, revalidate func(context.Context) error) error {
	s.did, s.plan, s.on = "replace", plan, on
	return s.act(ctx, revalidate)
}

func (s *scribe) UnmountTop(ctx context.Context, plan facts.UnmountPlan, revalidate func(context.Context) error) error {
	s.did, s.on, s.below = "unmount-dead-top", plan.Top, plan.Below
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

var rebindExamples = map[string]struct {
	change []func(*healer.Case)
	did    string
	plan   facts.RebindPlan
}{
	"a subdirectory": {[]func(*healer.Case){lost}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
	"the whole volume": {
		[]func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Root = "/" })},
		"rebind",
		facts.RebindPlan{Attr: facts.AttrNoExec, Private: true},
	},
	"below a staged subvolume": {[]func(*healer.Case){lost, func(c *healer.Case) {
		c.Record.MountPoints[1].Root, c.Record.MountPoints[0].Root = "/vols/v", "/vols/v/a/b"
		c.MountPoints[1].Stack[0].Root = "/vols/v"
	}}, "rebind", facts.RebindPlan{Sub: "a/b", Attr: facts.AttrNoExec, Private: true}},
	"read-only": {
		[]func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly })},
		"rebind",
		facts.RebindPlan{Sub: "sub", Attr: facts.AttrReadOnly, Private: true},
	},
	"shared": {
		[]func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Shared = 3 })},
		"rebind",
		facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Shared: true},
	},
	"slave": {
		[]func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Propagation.Master = 3 })},
		"rebind",
		facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec},
	},
	// A pod that waits for its mount is not helped by waiting longer.
	"a full volume": {[]func(*healer.Case){lost, left(0, 0)}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
	"a slow volume": {[]func(*healer.Case){lost, late(9)}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
	"interrupted, on a full and slow volume": {
		[]func(*healer.Case){placeholderAlone, left(0, 0), late(9)}, "finish", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true},
	},
	"a filesystem that counted errors": {
		[]func(*healer.Case){lost, left(0, 0), late(3), counted(1, after)}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true},
	},
	"a device that is write-protected": {
		[]func(*healer.Case){lost, device(func(d *facts.BlockDevice) { d.ReadOnly = true })}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true},
	},
	"a staged mount that is read-only": {[]func(*healer.Case){lost, attr(1, facts.AttrReadOnly)}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
	"old errors":                       {[]func(*healer.Case){lost, counted(7, after), baseline}, "rebind", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
	"interrupted":                      {[]func(*healer.Case){placeholderAlone}, "finish", facts.RebindPlan{Sub: "sub", Attr: facts.AttrNoExec, Private: true}},
}

func TestRebind(t *testing.T) {
	for name, tc := range rebindExamples {
		t.Run(name, func(t *testing.T) {
			c := with(tc.change...)()
			h := &scribe{}
			s := step(t, h, c)
			if s.Refused != "" || s.Name != StepRebind || s.Cost != healer.Rebind || s.Source != disk || s.MountPoint.Path != published ||
				!slices.Contains(s.Heals, healer.NotMounted) {
				t.Fatalf("%+v", s)
			}
			if err := s.Run(context.Background(), func(context.Context) error { return errRevalidate }); !errors.Is(err, errRevalidate) {
				t.Errorf("got %v", err)
			}
			tc.plan.Staged, tc.plan.Target = c.MountPoints[1].Stack[0], published
			if h.did != tc.did || !reflect.DeepEqual(h.plan, tc.plan) {
				t.Errorf("%s %+v\nwant %s %+v", h.did, h.plan, tc.did, tc.plan)
			}
			if tc.did == "finish" && !reflect.DeepEqual(h.on, c.MountPoints[0].Stack[0]) {
				t.Errorf("finishes %+v", h.on)
			}
		})
	}
}

func TestRebindIsRefused(t *testing.T) {
	for _, tc := range []struct {
		why    string
		change []func(*healer.Case)
	}{
		{"never seen healthy at this mount point", []func(*healer.Case){unrecorded, lost}},
		{"never seen healthy at this mount point", []func(*healer.Case){lost, func(c *healer.Case) { c.MountPoints[0].Want = nil }}},
		{"no staged mount to bind from", []func(*healer.Case){lost, func(c *healer.Case) { c.Record.MountPoints = c.Record.MountPoints[:1] }}},
		{"the staged mount is gone", []func(*healer.Case){lost, stagingLost}},
		{"several mounts are stacked on the staging path", []func(*healer.Case){lost, func(c *healer.Case) {
			c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2)
		}}},
		{"the recorded staging path is another one", []func(*healer.Case){lost, recorded(1, func(r *healer.MountPointRecord) { r.Path = "/k/other" })}},
		{"was not the staged filesystem", []func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Dev.Minor++ })}},
		{"another ID mapping", []func(*healer.Case){lost, recorded(0, func(r *healer.MountPointRecord) { r.Attr |= facts.AttrIDMap })}},
		{"another ID mapping", []func(*healer.Case){lost, attr(1, facts.AttrIDMap)}},
		{"not healthy (Disconnected)", []func(*healer.Case){lost, probe(syscall.ENOTCONN)}},
		{"not healthy (FilesystemShutdown)", []func(*healer.Case){lost, superblock(func(sb *facts.Superblock) { sb.Shutdown = true })}},
		{"not healthy (WrongVolumeMounted)", []func(*healer.Case){lost, func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }}},
		{"not healthy (IOError)", []func(*healer.Case){placeholderAlone, probe(syscall.EIO)}},
		{"not healthy (NotResponding)", []func(*healer.Case){lost, writing("jbd2_log_wait_commit")}},
		{"not healthy (DeviceSizeChanged)", []func(*healer.Case){lost, sized(1)}},
		{"not healthy (PermissionDenied)", []func(*healer.Case){lost, probe(syscall.EACCES)}},
		{"does not lie below the staged one", []func(*healer.Case){lost, func(c *healer.Case) {
			c.Record.MountPoints[1].Root, c.MountPoints[1].Stack[0].Root = "/su", "/su"
		}}},
		{"not healthy (StaleFileHandle)", []func(*healer.Case){placeholderAlone, func(c *healer.Case) {
			c.MountPoints[0].Stack[0].RootDeleted = true
		}}},
	} {
		s := step(t, idle{t}, with(tc.change...)())
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
		p.Path, p.Stack = other, []facts.Mount{mount(other, "/sub", facts.AttrNoExec)}
		r := *c.Record.MountPoint(published)
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
		if s := step(t, idle{t}, with(secondPod, probe(e))()); s.Refused == "" {
			t.Errorf("%v: the sick filesystem is to be bound at %s", e, s.MountPoint.Path)
		}
	}
	if s := step(t, idle{t}, with(secondPod)()); s.Refused != "" || s.MountPoint.Path != published {
		t.Errorf("%+v", s)
	}
}

func TestUnmountDuplicate(t *testing.T) {
	c := with(placeholderOnTop)()
	h := &scribe{}
	s := step(t, h, c)
	if s.Name != StepUnmountDuplicate || s.Refused != "" || s.Source != disk || !slices.Equal(s.Heals, []healer.Reason{healer.StackedMounts}) {
		t.Fatalf("%+v", s)
	}
	if err := s.Run(context.Background(), func(context.Context) error { return errRevalidate }); !errors.Is(err, errRevalidate) {
		t.Errorf("got %v", err)
	}
	if h.did != "take off" || !reflect.DeepEqual(h.on, c.MountPoints[0].Stack[0]) {
		t.Errorf("%s %+v", h.did, h.on)
	}
}

func TestNothingIsOfferedFor(t *testing.T) {
	for name, build := range map[string]func() healer.Case{
		"a healthy volume":        healthy,
		"the staging mount point": with(stagingLost),
		"a foreign stack":         with(func(c *healer.Case) { c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 2) }),
		"a stack of placeholders": with(placeholderAlone, placeholderOnTop),
		"another root below":      with(placeholderOnTop, func(c *healer.Case) { c.MountPoints[0].Stack[1].Root = "/x" }),
		"a dead filesystem":       with(probe(syscall.EIO)),
		"a full volume":           with(left(0, 0)),
		"a slow volume":           with(late(9)),
		"a frozen volume":         with(writing("percpu_rwsem_wait")),
		"errors":                  with(counted(1, after)),
		"a read-only mount":       with(attr(0, facts.AttrReadOnly)),
		"placeholder in staging":  with(func(c *healer.Case) { c.MountPoints[1].Stack[0].Attr = placeholder }),
		"an intended placeholder": with(recorded(0, func(r *healer.MountPointRecord) { r.Attr = placeholder }), attr(0, placeholder)),
	} {
		f, err := New(idle{t}).Examine(build())
		if err != nil || len(f.Steps) != 0 {
			t.Errorf("%s: %+v, %v", name, f.Steps, err)
		}
	}
}
