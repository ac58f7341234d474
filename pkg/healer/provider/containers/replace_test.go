package containers

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// replaceStep returns the only step offered for a case.
func replaceStep(t *testing.T, h *kernel, which Scope, c healer.Case) healer.Step {
	t.Helper()
	steps := examine(t, h, which, c).Steps
	if len(steps) != 1 || steps[0].MountPoint.Path != contained || steps[0].Cost != healer.Replace || !slices.Equal(steps[0].Heals, []healer.Reason{healer.StaleInContainers}) {
		t.Fatalf("%+v", steps)
	}
	return steps[0]
}

// of makes a volume of another filesystem type.
func of(fsType string) cases.Change {
	return func(c *healer.Case) {
		c.Record.FSType = fsType
		for i := range c.MountPoints {
			c.MountPoints[i].Stack[0].FSType = fsType
		}
		cases.Of(cases.Renewed, func(sb *healer.Superblock) { sb.FSType = fsType })(c)
		has(func(m *facts.Mount) { m.FSType = fsType })(c)
	}
}

// What shares its mount events: the container's mount, and the host's.

func shares(s facts.Sharing) cases.Change {
	return inContainer(func(in *healer.InContainer) { in.Sharing = s })
}

func hostShares(c *healer.Case) { c.MountPoints[0].Stack[0].Propagation.Shared = 5 }

// leftAt names what an interrupted replacement left of a mount with this root.
func leftAt(root string) facts.Ref {
	m := containedMount()
	m.Root = root
	return unfinished(&healer.InContainer{ContainerMount: facts.ContainerMount{Mount: m}}).Ref()
}

const sharesNone = "how it shared mount events is not known or not kept, so it shares none now"

var replacements = map[string]struct {
	change []cases.Change
	which  Scope
	source int // the mount point on the host
	want   facts.ContainerSwap
	note   string
}{
	"as published to its pod": {},
	"everything":              {which: All},
	"NFS":                     {change: []cases.Change{of("nfs4")}, which: All},
	"a name that the dead daemon did not look up": {
		change: []cases.Change{has(func(m *facts.Mount) { m.RootDeleted = true })},
	},
	"the whole volume, which only staging shows": {
		change: []cases.Change{has(func(m *facts.Mount) { m.Root = "/" })},
		source: 1,
	},
	"a subPath": {
		change: []cases.Change{has(func(m *facts.Mount) { m.Root = "/sub/a/b" })},
		want:   facts.ContainerSwap{Sub: "a/b"},
	},
	"a subPath that only staging shows": {
		change: []cases.Change{has(func(m *facts.Mount) { m.Root = "/else" })},
		source: 1,
		want:   facts.ContainerSwap{Sub: "else"},
	},
	"of a pod with no mount point of its own": {
		change: []cases.Change{func(c *healer.Case) { c.MountPoints[0].PodUID = "b" }},
		source: 1,
		want:   facts.ContainerSwap{Sub: "sub"},
	},
	"nothing staged": {change: []cases.Change{cases.StagingLost, func(c *healer.Case) {
		c.MountPoints[0].PodUID, c.MountPoints[1].Want = "b", nil
	}}},
	"a duplicate on the pod's mount point": {change: []cases.Change{func(c *healer.Case) {
		c.MountPoints[0].Stack = append(c.MountPoints[0].Stack, c.MountPoints[0].Stack[0])
	}}},
	"staging listed first": {
		change: []cases.Change{func(c *healer.Case) {
			c.MountPoints[0], c.MountPoints[1] = c.MountPoints[1], c.MountPoints[0]
		}},
		source: 1,
	},
	"the pod's mount point lies in staging": {
		change: []cases.Change{func(c *healer.Case) { c.MountPoints[0].Stack[0].Path = cases.Staged }},
		source: 1,
		want:   facts.ContainerSwap{Sub: "sub"},
	},
	"a slave of the host's": {
		change: []cases.Change{hostShares, shares(facts.SharingSlave)},
		want:   facts.ContainerSwap{Sharing: facts.SharingSlave},
	},
	"a peer of the host's": {
		change: []cases.Change{hostShares, shares(facts.SharingPeer)},
		want:   facts.ContainerSwap{Sharing: facts.SharingPeer},
	},
	"not known with whom it is shared": {
		change: []cases.Change{hostShares, shares(facts.SharingUnknown)},
		want:   facts.ContainerSwap{Sharing: facts.SharingUnknown},
		note:   sharesNone,
	},
	"a peer of one that is none": {
		change: []cases.Change{shares(facts.SharingPeer)},
		want:   facts.ContainerSwap{Sharing: facts.SharingUnknown},
		note:   sharesNone,
	},
	"a slave, and only staging shows it": {
		change: []cases.Change{hostShares, shares(facts.SharingSlave), has(func(m *facts.Mount) { m.Root = "/" })},
		source: 1,
		want:   facts.ContainerSwap{Sharing: facts.SharingUnknown},
		note:   sharesNone,
	},
	"read-only": {change: []cases.Change{has(func(m *facts.Mount) { m.Attr = facts.AttrReadOnly })}},
	"interrupted, and to be as it was": {
		change: []cases.Change{inContainer(func(in *healer.InContainer) { unfinishedAlone(in); in.Attr = facts.AttrNoExec })},
		want:   facts.ContainerSwap{Ours: leftAt("/sub")},
	},
	"interrupted, alone": {
		change: []cases.Change{inContainer(unfinishedAlone)},
		want:   facts.ContainerSwap{Ours: leftAt("/sub")},
	},
	"interrupted, beneath": {
		change: []cases.Change{inContainer(unfinishedBelow)},
		want:   facts.ContainerSwap{Ours: leftAt("/sub")},
	},
	"interrupted, beneath a subPath": {
		change: []cases.Change{has(func(m *facts.Mount) { m.Root = "/sub/a" }), inContainer(unfinishedBelow)},
		want:   facts.ContainerSwap{Sub: "a", Ours: leftAt("/sub/a")},
	},
}

func TestReplace(t *testing.T) {
	for name, tc := range replacements {
		t.Run(name, func(t *testing.T) {
			c := cases.With(append([]cases.Change{healedOnHost}, tc.change...)...)()
			if tc.which == "" {
				tc.which = FUSE
			}
			h := &kernel{}
			s := replaceStep(t, h, tc.which, c)
			if s.Refused != "" || s.Run != nil || s.RunBatch == nil || s.Source != cases.Renewed || s.Note != tc.note {
				t.Fatalf("%+v", s)
			}
			if errs := s.RunBatch(context.Background(), []healer.Step{s}, []func(context.Context) error{cases.Willing}); len(errs) != 1 || errs[0] != nil {
				t.Errorf("%v", errs)
			}
			tc.want.Attr, tc.want.Container, tc.want.Source = c.MountPoints[2].InContainer.Attr, c.MountPoints[2].InContainer.ContainerMount, c.MountPoints[tc.source].Stack[0]
			if len(h.plans) != 1 || !reflect.DeepEqual(h.plans[0], tc.want) {
				t.Errorf("%+v\nwant %+v", h.plans, tc.want)
			}
		})
	}
}

// containedMount is what the container of a stale volume has.
func containedMount() facts.Mount { return cases.With(healedOnHost)().MountPoints[2].InContainer.Mount }

var refusedReplacements = []struct {
	why    string
	change func(*healer.Case)
	which  Scope
}{
	{why: "--heal-containers=off", which: Off},
	{why: "an interrupted replacement left a mount on top of the dead one", change: inContainer(stackedOnDead), which: FUSE},
	{
		why:    "only FUSE is healed in containers, and this is a nfs4 (--heal-containers=fuse)",
		change: has(func(m *facts.Mount) { m.FSType = "nfs4" }),
	},
	{
		why:    "not proven to be the volume's: it is unknown",
		change: inContainer(func(in *healer.InContainer) { in.Proof, in.Unproven = "", "it is unknown" }),
	},
	{why: "never seen healthy", change: cases.Unrecorded},
	{
		why:    "cannot be told to be dead",
		change: inContainer(func(in *healer.InContainer) { in.Probe = facts.ContainerProbe{TimedOut: true} }),
	},
	{
		why:    "cannot be told to be dead",
		change: inContainer(func(in *healer.InContainer) { in.Probe = facts.ContainerProbe{Err: "no way in"} }),
	},
	{
		why:    "cannot be told to be dead",
		change: inContainer(func(in *healer.InContainer) { in.Probe = facts.ContainerProbe{Errno: syscall.EACCES} }),
	},
	{why: "no healthy mount of the volume", change: cases.Of(cases.Renewed, cases.Errno(syscall.ENOTCONN))},
	{why: "no healthy mount of the volume", change: has(func(m *facts.Mount) { m.FSType = "fuse.y" })},
	{
		why: "no healthy mount of the volume",
		change: func(c *healer.Case) {
			c.MountPoints[0].Stack[0].Attr, c.MountPoints[1].Stack[0].Attr = cases.Placeholder, cases.Placeholder
		},
	},
	{
		why: "no healthy mount of the volume that shows the container's directory",
		change: func(c *healer.Case) {
			c.MountPoints[1].Stack[0].Root = "/x"
			has(func(m *facts.Mount) { m.Root = "/subway" })(c)
		},
	},
	{why: "the directory that the container has was deleted", which: All, change: func(c *healer.Case) {
		of("xfs")(c)
		has(func(m *facts.Mount) { m.RootDeleted = true })(c)
	}},
	{why: "the pod's mount point on the host is not healthy", change: cases.Lost},
	{
		why:    "several mounts are stacked there",
		change: inContainer(func(in *healer.InContainer) { in.Below = []facts.Mount{in.Mount} }),
	},
	{
		why:    "several mounts are stacked there",
		change: inContainer(func(in *healer.InContainer) { unfinishedBelow(in); in.Below = append(in.Below, in.Mount) }),
	},
	{
		why:    "several mounts are stacked there",
		change: inContainer(func(in *healer.InContainer) { unfinishedBelow(in); in.Below[0].Root = "/x" }),
	},
	{
		why:    "marks an interrupted replacement",
		change: inContainer(func(in *healer.InContainer) { in.Attr |= facts.AttrNoSymFollow }),
	},
	{
		why:    "marks an interrupted replacement",
		change: inContainer(func(in *healer.InContainer) { in.Attr |= facts.AttrNoSymFollow | facts.AttrReadOnly }),
	},
	{
		why: "only one maps ids",
		change: func(c *healer.Case) {
			c.MountPoints[0].Stack[0].Attr |= facts.AttrIDMap
			c.Record.MountPoints[0].Attr |= facts.AttrIDMap
		},
	},
	{why: "only one maps ids", change: has(func(m *facts.Mount) { m.Attr |= facts.AttrIDMap })},
	{
		why: "nothing shows that the host's maps them alike",
		change: func(c *healer.Case) {
			has(func(m *facts.Mount) { m.Attr |= facts.AttrIDMap })(c)
			c.MountPoints[0].Stack[0].Attr |= facts.AttrIDMap
			c.Record.MountPoints[0].Attr |= facts.AttrIDMap
		},
	},
}

func TestReplaceIsRefused(t *testing.T) {
	for _, tc := range refusedReplacements {
		if tc.change == nil {
			tc.change = func(*healer.Case) {}
		}
		if tc.which == "" {
			tc.which = FUSE
		}
		s := replaceStep(t, &kernel{}, tc.which, cases.With(healedOnHost, tc.change)())
		if s.RunBatch != nil || s.Run != nil || !strings.Contains(s.Refused, tc.why) {
			t.Errorf("refused with %q, want %q", s.Refused, tc.why)
		}
	}
}

// What is there already needs no call that an old kernel lacks.
func TestReplaceOnAnOldKernel(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*healer.Case)
		refused bool
	}{
		"a FUSE that is gone":  {func(*healer.Case) {}, false},
		"a stale mount":        {inContainer(func(in *healer.InContainer) { in.Probe.Errno = syscall.ESTALE }), true},
		"an aborted one":       {inContainer(func(in *healer.InContainer) { in.Probe.Errno = syscall.ECONNABORTED }), true},
		"interrupted, beneath": {inContainer(unfinishedBelow), false},
		"interrupted, alone":   {inContainer(unfinishedAlone), false},
	} {
		s := replaceStep(t, &kernel{old: true}, FUSE, cases.With(healedOnHost, tc.change)())
		if (s.Refused != "") != tc.refused || tc.refused && s.Refused != healer.ReplaceNotSupported {
			t.Errorf("%s: %q", name, s.Refused)
		}
	}
}

// Degraded mount points of the pod keep nothing back, and another pod's are its own.
func TestOnlyASickMountPointOfItsPodKeepsAContainerBack(t *testing.T) {
	for name, change := range map[string]cases.Change{
		"another pod's is lost": func(c *healer.Case) { c.MountPoints[0].PodUID = "b"; cases.Lost(c) },
		"its own is degraded": func(c *healer.Case) {
			c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 2)
		},
	} {
		if s := replaceStep(t, &kernel{}, FUSE, cases.With(healedOnHost, change)()); s.Refused != "" {
			t.Errorf("%s: %s", name, s.Refused)
		}
	}
}

// A clone comes from where its mount came from: a subPath's mount on the host is a
// copy itself, and a container's is none of the host's.
func TestSourceIsNeitherASubPathNorAContainer(t *testing.T) {
	c := cases.With(healedOnHost, func(c *healer.Case) {
		sub := c.MountPoints[0]
		sub.Path, sub.Layout = "/k/sub", layout.Path{Kind: layout.Subpath}
		other := c.MountPoints[2]
		other.Path, other.Stack = "/proc/78/root/data", slices.Clone(other.Stack)
		other.Stack[0].Dev, other.Stack[0].Path = cases.Renewed, other.Path
		c.MountPoints = []healer.MountPoint{sub, other, c.MountPoints[2]}
		c.MountPoints[0].Stack = slices.Clone(sub.Stack)
		c.MountPoints[0].Stack[0].Path = sub.Path
	})()
	if source, _, found := sourceFor(c, c.MountPoints[2]); found {
		t.Errorf("%+v", source)
	}
}

// One worker takes all containers that may still be healed; each hears of its own.
func TestReplaceTogether(t *testing.T) {
	failed := errors.New("no way in")
	c := cases.With(healedOnHost, func(c *healer.Case) {
		for pid, path := range map[int]string{78: "/proc/78/root/data", 79: "/proc/79/root/data"} {
			p := c.MountPoints[2]
			in := *p.InContainer
			in.PID, p.InContainer, p.Path = pid, &in, path
			c.MountPoints = append(c.MountPoints, p)
		}
	})()
	for name, tc := range map[string]struct {
		unwanted []int
		want     map[int]error
	}{
		"all":            {want: map[int]error{77: nil, 78: failed, 79: nil}},
		"one left alone": {unwanted: []int{77}, want: map[int]error{77: cases.ErrRevalidate, 78: failed, 79: nil}},
		"none":           {unwanted: []int{77, 78, 79}, want: map[int]error{77: cases.ErrRevalidate, 78: cases.ErrRevalidate, 79: cases.ErrRevalidate}},
	} {
		h := &kernel{errs: map[int]error{78: failed}}
		f := examine(t, h, FUSE, c)
		if len(f.Steps) != 3 || h.plans != nil {
			t.Fatalf("%+v", f.Steps)
		}
		var revalidate []func(context.Context) error
		for _, s := range f.Steps {
			revalidate = append(revalidate, func(context.Context) error {
				if slices.Contains(tc.unwanted, s.MountPoint.InContainer.PID) {
					return cases.ErrRevalidate
				}
				return nil
			})
		}
		// Whichever of them the engine takes.
		errs := f.Steps[1].RunBatch(context.Background(), f.Steps, revalidate)
		for i, s := range f.Steps {
			if pid := s.MountPoint.InContainer.PID; !errors.Is(errs[i], tc.want[pid]) {
				t.Errorf("%s: %d: %v", name, pid, errs[i])
			}
		}
		if len(h.plans) != 3-len(tc.unwanted) {
			t.Errorf("%s: %d containers were asked for", name, len(h.plans))
		}
	}
}

// Where nothing is staged, another pod's mount may be of another source.
func TestSourceIsNoMountOfAnotherSource(t *testing.T) {
	c := cases.With(healedOnHost)()
	for i := range c.MountPoints[:2] {
		c.MountPoints[i].Stack[0].Source = "another"
	}
	if source, _, found := sourceFor(c, c.MountPoints[2]); found {
		t.Errorf("%+v", source)
	}
}
