package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// bare is what a kept topology shows: mounts without what may change unnoticed.
func bare(b *fixture) []facts.Mount {
	mounts := slices.Clone(b.mounts)
	for i := range mounts {
		m := &mounts[i]
		m.Attr, m.Propagation, m.SuperReadOnly, m.SuperOptions = 0, facts.Propagation{}, false, nil
	}
	return mounts
}

// stackAt returns the ids of the mounts at a mount point of the last case, top first.
func stackAt(b *fixture, path string) []uint64 {
	p, _ := b.last().MountPoint(path)
	var list []uint64
	for _, m := range p.Stack {
		list = append(list, m.ID)
	}
	return list
}

// Whatever a kept topology still shows, the case has what is there.
func TestOldTopology(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b *fixture) // after the topology was kept
		at     string
		want   []uint64
	}{
		"nothing changed": {func(*fixture) {}, podA, []uint64{102}},
		"unmounted":       {func(b *fixture) { b.unmount(podA) }, podA, nil},
		"mounted anew": {func(b *fixture) {
			b.unmount(podA)
			b.mount(podA, disk)
			b.change(podA, func(m *facts.Mount) { m.ID = 500 })
		}, podA, []uint64{500}},
		"moved away":           {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.Path = "/elsewhere" }) }, podA, nil},
		"staged anew":          {func(b *fixture) { b.change(staging, func(m *facts.Mount) { m.ID = 501 }) }, staging, []uint64{501}},
		"another pod's, gone":  {func(b *fixture) { b.unmount(podB) }, podB, nil},
		"another pod's, moved": {func(b *fixture) { b.change(podB, func(m *facts.Mount) { m.ID = 502 }) }, podB, []uint64{502}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.publish(podB)
			b.stale = bare(b)
			tc.change(b)
			b.heal(volume)
			if got := stackAt(b, tc.at); !slices.Equal(got, tc.want) {
				t.Errorf("%v at %s, want %v", got, tc.at, tc.want)
			}
		})
	}
}

func TestMountThatTheTopologyDoesNotShow(t *testing.T) {
	for _, path := range []string{podA, staging} {
		b := newFixture(t)
		all := slices.Clone(b.mounts)
		b.unmount(path)
		b.stale = bare(b)
		b.mounts = all
		b.heal(volume)
		if got := stackAt(b, path); len(got) != 1 {
			t.Errorf("%s was taken for empty", path)
		}
	}
}

// Options, attributes and propagation change without a report.
func TestOptionsAreFresh(t *testing.T) {
	b := newFixture(t)
	b.stale = bare(b)
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) {
			m.SuperOptions, m.Attr, m.Propagation = []string{"shutdown"}, facts.AttrNoExec, facts.Propagation{Shared: 7}
		})
	}
	b.heal(volume)
	c := b.last()
	for _, path := range []string{podA, staging} {
		p, _ := c.MountPoint(path)
		if top, mounted := p.Top(); !mounted || top.Attr != facts.AttrNoExec || top.Propagation.Shared != 7 {
			t.Errorf("%s: %+v", path, p.Stack)
		}
	}
	if !c.Superblocks[disk].Shutdown || b.stale == nil {
		t.Errorf("%+v", c.Superblocks)
	}
}

// A staging path on which nothing is expected costs no second look: many drivers
// stage nothing.
func TestLooksForAnEmptyStagingPath(t *testing.T) {
	b := newFixture(t)
	b.unmount(staging)
	looks := func(v healer.Volume) int {
		b.looks = 0
		b.heal(v)
		return b.looks
	}
	if n := looks(volume); n != 4 { // two superblocks: the volume's, and what the empty path lies on
		t.Errorf("never seen: %d looks", n)
	}
	if n := looks(volume); n != 2 {
		t.Errorf("recorded without a staged mount: %d looks", n)
	}
	// One that is named as the volume is expected.
	b.unmount(podA)
	if n := looks(healer.Volume{ID: volID, Path: staging}); n < 2 {
		t.Errorf("named: %d looks", n)
	}
	if p, _ := b.last().MountPoint(staging); len(p.Stack) != 0 {
		t.Errorf("%+v", p)
	}
	recorded := newFixture(t)
	recorded.healthy()
	recorded.unmount(staging)
	recorded.looks = 0
	recorded.heal(volume)
	if recorded.looks != 4 {
		t.Errorf("recorded with a staged mount: %d looks", recorded.looks)
	}
}

// A table for ever behind ends in an error, not in a loop, and not in a verdict.
func TestTopologyThatNeverCatchesUp(t *testing.T) {
	b := newFixture(t)
	b.stale = bare(b)
	next := uint64(1000)
	b.onMounts = func() { // each reading shows other mounts
		b.change(podA, func(m *facts.Mount) { next++; m.ID = next })
	}
	b.answers[disk] = node.Inspection{Changed: true}
	if _, err := b.engine.Heal(context.Background(), volume); healer.KindOf(err) != healer.KindUnknown {
		t.Errorf("got %v", err)
	}
}

func TestUpperOfAnOverlay(t *testing.T) {
	dead := func(m *facts.Mount) { m.FSType, m.SuperOptions = "xfs", []string{"shutdown"} }
	options := func(o ...string) func(*fixture) {
		return func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.SuperOptions = o }) }
	}
	for name, tc := range map[string]struct {
		change func(*fixture)
		want   string // the upper's type, empty for unknown
		dead   bool
	}{
		"on a volume":        {func(*fixture) {}, "xfs", true},
		"on the root":        {options("upperdir=/var/u"), "ext4", false},
		"with a detour":      {options("upperdir=/var/../data/./u/"), "xfs", true},
		"at the mount point": {options("upperdir=/data"), "xfs", true},
		"none":               {options("lowerdir=/data/l"), "", false},
		"of another option":  {options("xupperdir=/data/u"), "", false},
		"relative":           {options("upperdir=data/u"), "", false},
		"empty":              {options("upperdir="), "", false},
		"covered by another": {func(b *fixture) {
			b.mount("/data/u", disk)
			b.change("/data/u", func(m *facts.Mount) { m.OldParent = 103 })
		}, "ext4", false},
		"mounted later": {func(b *fixture) { b.change("/data", func(m *facts.Mount) { m.ID = 901 }) }, "", false},
		"not in this namespace": {func(b *fixture) {
			b.mounts = slices.DeleteFunc(b.mounts, func(m facts.Mount) bool { return m.Path == "/" })
		}, "", false},
		"no overlay": {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.FSType = "fuse.x" }) }, "", false},
	} {
		for _, kept := range []bool{false, true} {
			b := newFixture(t)
			overUpper(dead)(b)
			tc.change(b)
			if kept {
				b.stale = bare(b)
			}
			if name == "not in this namespace" {
				// A table without a root has no mount point either.
				o := observation{node: b.fakeNode, table: node.NewTable(b.mounts)}
				if upper := o.upper(facts.Mount{SuperOptions: []string{"upperdir=/data/u"}}); upper != nil {
					t.Errorf("%s: %+v", name, upper)
				}
				continue
			}
			b.heal(volume)
			upper := b.last().Superblocks[facts.Dev{Minor: 77}].Upper
			if (upper != nil) != (tc.want != "") || upper != nil && (upper.FSType != tc.want || upper.Shutdown != tc.dead) {
				t.Errorf("%s, from a kept topology: %v: %+v", name, kept, upper)
			}
		}
	}
}

// The upper may have moved since the topology was kept.
func TestUpperOfAnOldTopology(t *testing.T) {
	b := newFixture(t)
	overUpper(func(m *facts.Mount) { m.FSType = "xfs" })(b)
	b.stale = bare(b)
	b.change("/data", func(m *facts.Mount) { m.ID, m.SuperOptions = 600, []string{"shutdown"} })
	b.heal(volume)
	if upper := b.last().Superblocks[facts.Dev{Minor: 77}].Upper; upper == nil || !upper.Shutdown {
		t.Errorf("%+v", upper)
	}
}
