package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// A person who is to unmount a sick volume has to know where it is mounted.
func TestWhereASickVolumeIsMounted(t *testing.T) {
	other := facts.Dev{Minor: 77}
	has := func(d facts.Dev) facts.ContainerMount {
		return facts.ContainerMount{Container: facts.Container{Workload: facts.Workload{PodUID: "uid-a", ContainerID: "0123456789abcdef"}}, Mount: facts.Mount{Dev: d, Path: "/data"}}
	}
	const by = "pod uid-a container 0123456789ab"
	for name, tc := range map[string]struct {
		change func(*fixture)
		mounts int
		by     []string
	}{
		"healthy":             {func(*fixture) {}, 0, nil},
		"at two mount points": {func(b *fixture) { b.fall(podA, healer.IOError); b.fall(staging, healer.IOError) }, 2, nil},
		"in a container, twice": {func(b *fixture) {
			b.fall(podA, healer.IOError)
			b.containers = []facts.ContainerMount{has(disk), has(disk), has(other), {Mount: facts.Mount{Dev: disk}}}
		}, 5, []string{by}},
		"in one that has too many": {func(b *fixture) {
			b.fall(podA, healer.IOError)
			b.unverified = []facts.Unverified{{Workload: facts.Workload{PodUID: "uid-b"}, Why: facts.WhyTooMany, Has: true}, {Workload: facts.Workload{PodUID: "uid-c"}, Why: facts.WhyForeign}}
		}, 2, []string{"pod uid-b"}},
		"of two filesystems": {func(b *fixture) {
			b.change(staging, func(m *facts.Mount) { m.Dev = other })
			b.fall(podA, healer.IOError)
			b.fall(staging, healer.IOError)
			b.containers = []facts.ContainerMount{has(other)}
		}, 3, []string{by}},
		"a directory of a filesystem with others": {func(b *fixture) {
			b.change(podA, func(m *facts.Mount) { m.Dev, m.Root = other, "/volume" })
			b.change(staging, func(m *facts.Mount) { m.Dev, m.Root = other, "/volume" })
			b.mount("/shared", other)
			b.fall(podA, healer.StaleFileHandle)
			mine, others := has(other), has(other)
			mine.Mount.Root, others.Mount.Root, others.PodUID = "/volume/sub", "/another", "uid-c"
			b.containers = []facts.ContainerMount{mine, others}
		}, 3, []string{by}},
		"in one that cannot be looked into": {func(b *fixture) {
			b.fall(podA, healer.IOError)
			b.unverified = []facts.Unverified{{Workload: facts.Workload{PodUID: "uid-a"}, Why: facts.WhyForeign}}
		}, 2, nil},
		"nothing is mounted":      {func(b *fixture) { b.unmount(podA); b.fall(podA, healer.NotMounted) }, 0, nil},
		"at no known mount point": {func(b *fixture) { b.fall("/elsewhere", healer.IOError) }, 0, nil},
		"it cannot be told":       {func(b *fixture) { b.heal(volume); b.fall(podA, healer.IOError); b.walkErr = errors.New("no procfs") }, 0, nil},
	} {
		b := newFixture(t)
		tc.change(b)
		r := b.heal(volume)
		if more := strings.HasPrefix(name, "in one that"); r.Held.More != more || r.Held.Mounts != tc.mounts || !slices.Equal(r.Held.By, tc.by) || (r.Verdict() == healer.Healthy) != (name == "healthy") {
			t.Errorf("%s: %s, held %+v, want %d by %q", name, r.Verdict(), r.Held, tc.mounts, tc.by)
		}
	}
}

// Files that were open before stay dead where another filesystem instance is there now.
func TestReplaced(t *testing.T) {
	was := func(path string, d facts.Dev) healer.MountPoint { return on(healer.RoleTarget, path, d) }
	now := healer.Case{MountPoints: []healer.MountPoint{on(healer.RoleStaging, staging, renewed)}, Superblocks: map[facts.Dev]healer.Superblock{renewed: answered}}
	node := was("/a", facts.Dev{Minor: 5})
	node.Stack[0].FSType, node.Stack[0].Root = "devtmpfs", "/sdb"
	for name, tc := range map[string]struct {
		before []healer.MountPoint
		steps  []healer.Outcome
		want   bool
	}{
		"replaced":                        {[]healer.MountPoint{was("/a", previously)}, []healer.Outcome{{MountPoint: "/a"}}, true},
		"no step":                         {[]healer.MountPoint{was("/a", previously)}, nil, false},
		"the step failed":                 {[]healer.MountPoint{was("/a", previously)}, []healer.Outcome{{MountPoint: "/a", Err: errors.New("no")}}, false},
		"nothing was mounted there":       {[]healer.MountPoint{on(healer.RoleTarget, "/a")}, []healer.Outcome{{MountPoint: "/a"}}, false},
		"a mount point that was not seen": {[]healer.MountPoint{was("/a", previously)}, []healer.Outcome{{MountPoint: "/b"}}, false},
		"the same as now":                 {[]healer.MountPoint{was("/a", renewed)}, []healer.Outcome{{MountPoint: "/a"}}, false},
		"a device node":                   {[]healer.MountPoint{node}, []healer.Outcome{{MountPoint: "/a"}}, false},
		"one of two steps failed":         {[]healer.MountPoint{was("/a", previously), was("/b", dev(51))}, []healer.Outcome{{MountPoint: "/a", Err: errors.New("no")}, {MountPoint: "/b"}}, true},
	} {
		r := healer.Report{Before: healer.Diagnosis{Case: healer.Case{MountPoints: tc.before}}, After: healer.Diagnosis{Case: now}, Steps: tc.steps}
		if r.Replaced() != tc.want {
			t.Errorf("%s: %v", name, !tc.want)
		}
	}
}

// A driver that answers before its daemon ends has not staged the volume.
func TestRestageWhoseDaemonEnds(t *testing.T) {
	for name, ends := range map[string]bool{"ends": true, "serves": false} {
		b := newFixture(t)
		b.healthy()
		dead := node.Inspection{Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true, Errno: syscall.ENOTCONN}}
		answered := b.answers[disk]
		b.answers[disk] = dead
		b.fall(staging, healer.Disconnected)
		staged, _ := b.last().Staged()
		b.steps = []healer.Step{{Name: "restage", MountPoint: staged, Cost: healer.Restage, Heals: []healer.Reason{healer.Disconnected}, Run: func(context.Context, func(context.Context) error) error {
			if !ends {
				b.answers[disk] = answered
				b.recover(staging)
			}
			return nil
		}}}
		r := b.heal(volume)
		if class, ran := r.Failure(); !ran || r.Helped() == ends || ends && (class.Tier != api.Retriable || !errors.Is(r.Steps[0].Err, syscall.ENOTCONN)) {
			t.Errorf("%s: %s, %+v", name, r.Verdict(), r.Steps)
		}
	}
}
