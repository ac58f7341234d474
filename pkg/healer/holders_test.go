package healer

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// heldBy names what a report says of holders; the fake node shows each superblock's
// number as the path of a mount.
func heldBy(r Report) []string {
	var held []string
	for _, h := range r.Holders {
		held = append(held, h.Mounts[0].Path)
	}
	return held
}

func TestWhoHoldsASickVolume(t *testing.T) {
	other := host.Dev{Minor: 77}
	for name, tc := range map[string]struct {
		change func(*fixture)
		want   []string
	}{
		"healthy":                  {func(*fixture) {}, nil},
		"sick at two mount points": {func(b *fixture) { b.fall(podA, IOError); b.fall(staging, IOError) }, []string{disk.String()}},
		"of two filesystems": {func(b *fixture) {
			b.change(staging, func(m *host.Mount) { m.Dev = other })
			b.fall(podA, IOError)
			b.fall(staging, IOError)
		}, []string{other.String(), disk.String()}},
		"nothing is mounted":         {func(b *fixture) { b.unmount(podA); b.fall(podA, NotMounted) }, nil},
		"at no known mount point":    {func(b *fixture) { b.fall("/elsewhere", IOError) }, nil},
		"the holders cannot be told": {func(b *fixture) { b.fall(podA, IOError); b.heldErr = errors.New("no procfs") }, nil},
	} {
		b := newFixture(t)
		tc.change(b)
		r := b.heal(volume)
		got := heldBy(r)
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) || (r.Verdict() == Healthy) != (name == "healthy") {
			t.Errorf("%s: %s, held %q, want %q", name, r.Verdict(), got, tc.want)
		}
	}
}

// The superblock of a device node is devtmpfs: the device is asked for instead.
func TestWhoHoldsASickDevice(t *testing.T) {
	b := newBlockBench(t)
	b.fall(blockMountPoint, IOError)
	r := b.heal(Volume{ID: volID, Path: blockMountPoint})
	if got := heldBy(r); !slices.Equal(got, []string{host.Dev{}.String()}) || !slices.Equal(b.held, []host.Holdable{{Device: disk}}) {
		t.Errorf("asked for %+v, got %q", b.held, got)
	}
}

// Files that were open before stay dead: only who opened them can open them anew.
func TestWhoNeedsARestart(t *testing.T) {
	was := func(path string, d host.Dev) MountPoint { return on(RoleTarget, path, d) }
	now := Case{MountPoints: []MountPoint{on(RoleStaging, staging, renewed)}, Superblocks: map[host.Dev]host.Superblock{renewed: answered}}
	node := was("/a", host.Dev{Minor: 5})
	node.Stack[0].FSType, node.Stack[0].Root = "devtmpfs", "/sdb"
	for name, tc := range map[string]struct {
		before []MountPoint
		steps  []Outcome
		err    error
		free   bool
		asked  []host.Dev
		want   int
	}{
		"replaced":                          {before: []MountPoint{was("/a", previously)}, steps: []Outcome{{MountPoint: "/a"}}, asked: []host.Dev{previously}, want: 1},
		"nothing is open":                   {before: []MountPoint{was("/a", previously)}, steps: []Outcome{{MountPoint: "/a"}}, free: true, asked: []host.Dev{previously}},
		"it cannot be told":                 {before: []MountPoint{was("/a", previously)}, steps: []Outcome{{MountPoint: "/a"}}, err: errors.New("no procfs"), asked: []host.Dev{previously}},
		"no step":                           {before: []MountPoint{was("/a", previously)}},
		"the step failed":                   {before: []MountPoint{was("/a", previously)}, steps: []Outcome{{MountPoint: "/a", Err: errors.New("no")}}},
		"nothing was mounted there":         {before: []MountPoint{on(RoleTarget, "/a")}, steps: []Outcome{{MountPoint: "/a"}}},
		"a mount point that was not seen":   {before: []MountPoint{was("/a", previously)}, steps: []Outcome{{MountPoint: "/b"}}},
		"the same as now":                   {before: []MountPoint{was("/a", renewed)}, steps: []Outcome{{MountPoint: "/a"}}},
		"a device node":                     {before: []MountPoint{node}, steps: []Outcome{{MountPoint: "/a"}}},
		"one instance at two mount points":  {before: []MountPoint{was("/a", previously), was("/b", previously)}, steps: []Outcome{{MountPoint: "/a"}, {MountPoint: "/b"}}, asked: []host.Dev{previously}, want: 1},
		"two instances at two mount points": {before: []MountPoint{was("/a", previously), was("/b", dev(51))}, steps: []Outcome{{MountPoint: "/a"}, {MountPoint: "/b"}}, asked: []host.Dev{previously, dev(51)}, want: 2},
		"one of two steps failed":           {before: []MountPoint{was("/a", previously), was("/b", dev(51))}, steps: []Outcome{{MountPoint: "/a", Err: errors.New("no")}, {MountPoint: "/b"}}, asked: []host.Dev{dev(51)}, want: 1},
	} {
		b := newFixture(t)
		if b.heldErr = tc.err; !tc.free {
			b.processes = []host.HeldBy{{PID: 7, Command: "db"}}
		}
		r := Report{Before: Diagnosis{Case: Case{MountPoints: tc.before}}, After: Diagnosis{Case: now}, Steps: tc.steps}
		b.engine.reportRestarts(context.Background(), &r)
		var asked []host.Dev
		for _, h := range b.held {
			asked = append(asked, h.Superblock)
		}
		if len(r.Restart) != tc.want || !slices.Equal(asked, tc.asked) {
			t.Errorf("%s: asked for %v, told %+v", name, asked, r.Restart)
		}
		for _, h := range r.Restart {
			if len(h.Processes) != 1 || len(h.Mounts) != 0 {
				t.Errorf("%s: %+v", name, h)
			}
		}
	}
}
