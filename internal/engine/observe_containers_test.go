package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Filesystem instances of one FUSE volume: that of a daemon that has ended, and
// that of the one which came after it.
var previously, renewed = facts.Dev{Minor: 50}, facts.Dev{Minor: 60}

const fuseType, fuseSource = "fuse.x", "src"

// newFUSEBench has a FUSE volume that was seen healthy, when all that is mounted in
// containers was there.
func newFUSEBench(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	b := newFixture(t, change...)
	b.serve(previously)
	b.mounts = append(b.mounts, facts.Mount{ID: 9999, OldID: 9999, OldParent: 1, Path: "/some", Root: "/", Dev: facts.Dev{Minor: 33}})
	b.healthy()
	b.walks = nil
	return b
}

// serve returns the volume's mount points a filesystem instance.
func (b *fixture) serve(dev facts.Dev) {
	for _, p := range []string{staging, podA} {
		b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = dev, fuseType, fuseSource })
	}
}

// renew is a daemon that ended, and another that came after it, on the host.
func (b *fixture) renew() {
	b.serve(renewed)
	b.answers[previously] = node.Inspection{Answer: facts.Answer{Asked: true, Errno: syscall.ENOTCONN}}
}

// deadSight is what a container's mount of an ended daemon answers.
var deadSight = facts.ContainerProbe{Errno: syscall.ENOTCONN}

// run starts a container of a pod that has a filesystem instance, which is dead.
func (b *fixture) run(podUID string, dev facts.Dev, change ...func(*facts.ContainerMount)) facts.ContainerMount {
	m := containerMountOf(len(b.containers), podUID, dev)
	for _, c := range change {
		c(&m)
	}
	b.containers = append(b.containers, m)
	if b.inContainer == nil {
		b.inContainer = map[string]facts.ContainerProbe{}
	}
	b.inContainer[m.Path()] = deadSight
	return m
}

func containerMountOf(n int, podUID string, dev facts.Dev) facts.ContainerMount {
	return facts.ContainerMount{
		Container: facts.Container{
			Workload:  facts.Workload{PodUID: podUID, ContainerID: fmt.Sprint("c", n)},
			PID:       1000 + n,
			Namespace: uint64(5000 + n),
		},
		Mount: facts.Mount{
			ID: uint64(700 + n), OldID: 700 + n, Dev: dev, Root: "/", Path: "/data", FSType: fuseType, Source: fuseSource,
		},
	}
}

// inContainers returns the mount points in containers of the last case.
func (b *fixture) inContainers() []healer.MountPoint {
	return slices.DeleteFunc(slices.Clone(b.last().MountPoints), func(p healer.MountPoint) bool { return p.Role != healer.RoleContainer })
}

// It costs a walk through all processes.
func TestContainersAreScannedOnlyWhenItMayHelp(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fixture)
		looks  bool
	}{
		"nothing happened":        {func(*fixture) {}, false},
		"the server is new":       {func(b *fixture) { b.engine.scanned = newScannedVolumes() }, true},
		"a daemon came anew":      {func(b *fixture) { b.renew() }, true},
		"its mount point is dead": {func(b *fixture) { b.renew(); b.change(podA, func(m *facts.Mount) { m.Dev = previously }) }, true},
		"nothing works": {func(b *fixture) {
			b.engine.scanned = newScannedVolumes()
			b.answers[previously] = node.Inspection{Answer: facts.Answer{Asked: true, Errno: syscall.EIO}}
		}, false},
		"nothing is mounted": {func(b *fixture) { b.engine.scanned = newScannedVolumes(); b.unmount(podA); b.unmount(staging) }, false},
		"only ours, unfinished": {func(b *fixture) {
			b.engine.scanned = newScannedVolumes()
			b.unmount(staging)
			b.change(podA, func(m *facts.Mount) { m.Attr = placeholder })
		}, false},
	} {
		b := newFUSEBench(t)
		tc.change(b)
		b.heal(volume)
		if looks := len(b.walks) > 0; looks != tc.looks {
			t.Errorf("%s: %v", name, b.walks)
		}
		if name == "the server is new" {
			if b.walks = nil; len(b.heal(volume).Steps)+len(b.walks) != 0 {
				t.Errorf("%s: looked again", name)
			}
		}
	}
}

const placeholder = facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoSymFollow

func TestContainersOfARawBlockVolumeAreNotScanned(t *testing.T) {
	b := newBlockBench(t)
	b.heal(healer.Volume{ID: volID, Path: blockMountPoint})
	if len(b.walks) != 0 {
		t.Errorf("looked for those of %v", b.walks)
	}
}

// Only what a daemon serves has instances from before there was a record, and the
// record of a disk says that its containers were inspected.
func TestContainersOfADiskAreNotScannedAtTheStart(t *testing.T) {
	b := newFixture(t)
	if b.healthy(); len(b.walks) != 1 {
		t.Errorf("without a record it looked for those of %v", b.walks)
	}
	b.walks, b.engine.scanned = nil, newScannedVolumes()
	if b.healthy(); len(b.walks) != 0 {
		t.Errorf("looked for those of %v", b.walks)
	}
}

func TestContainersOfWhatIsNotProvenAreNotScanned(t *testing.T) {
	b := newFixture(t)
	b.files[podA], b.files[staging] = directory(""), directory("") // nothing proves whose it is
	for i := range 3 {
		if b.healthy(); len(b.walks) != 0 || b.notes.saves != 0 {
			t.Errorf("call %d: looked for those of %v, saved %d records", i, b.walks, b.notes.saves)
		}
	}
}

// Whether or not anything else is to be healed meanwhile.
func TestStaleContainersAreFoundAgain(t *testing.T) {
	for name, dev := range map[string]facts.Dev{"an unknown one": {Minor: 70}, "the previous one": previously} {
		b := newFUSEBench(t)
		if dev == previously {
			b.renew()
		}
		b.engine.scanned = newScannedVolumes()
		b.run("uid-a", dev)
		for look := range 3 {
			if b.heal(volume); len(b.inContainers()) != 1 {
				t.Errorf("%s: look %d shows %+v", name, look+1, b.inContainers())
			}
		}
		b.containers = nil
		for range 2 {
			if b.heal(volume); len(b.inContainers()) != 0 {
				t.Errorf("%s: it is gone, and seen all the same: %+v", name, b.inContainers())
			}
		}
	}
}

// What could not be looked at is looked at the next time.
func TestContainersThatCannotBeListed(t *testing.T) {
	b := newFUSEBench(t)
	b.engine.scanned = newScannedVolumes()
	b.walkErr = errors.New("no procfs")
	if _, err := b.engine.Heal(context.Background(), volume); !errors.Is(err, b.walkErr) {
		t.Errorf("got %v", err)
	}
	b.walkErr, b.walks = nil, nil
	if b.heal(volume); len(b.walks) == 0 {
		t.Error("never looked")
	}
	b.engine.scanned = newScannedVolumes()
	m := b.run("uid-a", facts.Dev{Minor: 70})
	b.insideErr = errors.New("no worker")
	if _, err := b.engine.Heal(context.Background(), volume); !errors.Is(err, b.insideErr) {
		t.Errorf("got %v", err)
	}
	b.insideErr, b.inContainer[m.Path()] = nil, facts.ContainerProbe{Err: "no worker"}
	b.heal(volume)
	b.inContainer[m.Path()] = deadSight
	if b.heal(volume); len(b.inContainers()) != 1 {
		t.Errorf("after two scans that could ask nothing, found %+v", b.inContainers())
	}
}

func TestWhoseContainersAreScanned(t *testing.T) {
	for _, standalone := range []bool{false, true} {
		b := newFUSEBench(t, func(c *Config) { c.Standalone = standalone })
		b.publish(podB)
		b.change(podB, func(m *facts.Mount) { m.FSType, m.Source = fuseType, fuseSource })
		b.renew()
		b.change(podB, func(m *facts.Mount) { m.Dev = renewed })
		b.heal(volume)
		want := []string{"uid-a", "uid-b"}
		if standalone {
			want = nil
		}
		if len(b.walks) == 0 || !slices.Equal(b.walks[0], want) || (b.walks[0] == nil) != standalone {
			t.Errorf("standalone %v: %v", standalone, b.walks)
		}
	}
}

// What was there before the superblock was replaced may still have the previous one,
// until it is gone; what came later has the new one.
func TestContainersThatCannotBeInspected(t *testing.T) {
	started := func(ago time.Duration) facts.Unverified {
		return facts.Unverified{Workload: facts.Workload{PodUID: "uid-a", ContainerID: "c"}, Detail: "why", Started: node.SinceBoot() - ago}
	}
	b := newFUSEBench(t)
	old := started(time.Hour)
	b.unverified = []facts.Unverified{old}
	if b.heal(volume); len(b.last().Unverified) != 0 {
		t.Errorf("nothing was replaced: %+v", b.last().Unverified)
	}
	b.renew()
	for range 2 {
		if b.heal(volume); !slices.Equal(b.last().Unverified, b.unverified) {
			t.Errorf("it was there before: %+v", b.last().Unverified)
		}
	}
	k := volumeKey(driver, volID)
	replaced := b.notes.records[k].Previous[0].Since
	// However long it lives.
	b.notes.records[k].Previous[0].Since = replaced - previousGrace - time.Second
	b.unverified = []facts.Unverified{old, started(-time.Second), started(previousGrace / 2)}
	for range 2 {
		if b.heal(volume); !slices.Equal(b.last().Unverified, []facts.Unverified{old}) {
			t.Errorf("others came later: %+v", b.last().Unverified)
		}
	}
	b.unverified = nil
	for range 2 {
		if b.heal(volume); len(b.last().Unverified) != 0 {
			t.Errorf("it is gone: %+v", b.last().Unverified)
		}
	}
	if r := b.notes.records[k]; len(r.Previous) != 0 {
		t.Errorf("looked for ever: %+v", r.Previous)
	}
}

func TestWhichMountsInContainersAreTheVolumes(t *testing.T) {
	unknown := facts.Dev{Minor: 70}
	guarded := func(m *facts.ContainerMount) { m.Mount.Attr = facts.AttrReadOnly | facts.AttrNoSymFollow }
	for name, tc := range map[string]struct {
		dev    facts.Dev
		change func(*facts.ContainerMount)
		spoil  func(*fixture)
		found  bool
		proven bool
	}{
		"the previous one":                                   {dev: previously, found: true, proven: true},
		"its number, another type":                           {dev: previously, change: func(m *facts.ContainerMount) { m.Mount.FSType = "fuse.y" }},
		"its number, another source":                         {dev: previously, change: func(m *facts.ContainerMount) { m.Mount.Source = "other" }},
		"another one, as on the host":                        {dev: renewed},
		"ours, interrupted":                                  {dev: renewed, change: guarded, spoil: recordedWith(facts.AttrNoSUID), found: true, proven: true},
		"as its pod wants it":                                {dev: renewed, change: guarded},
		"ours, to be read-only":                              {dev: renewed, change: guarded, spoil: recordedWith(facts.AttrReadOnly), found: true, proven: true},
		"as it was before":                                   {dev: renewed, change: guarded, spoil: recordedWith(facts.AttrNoSymFollow)},
		"recorded, and finished":                             {dev: renewed, spoil: recordedWith(facts.AttrNoSUID)},
		"recorded, and only read-only":                       {dev: renewed, spoil: recordedWith(facts.AttrNoSUID), change: func(m *facts.ContainerMount) { m.Mount.Attr = facts.AttrReadOnly }},
		"an unknown one of its type":                         {dev: unknown, found: true},
		"one of another type, the same source":               {dev: unknown, change: func(m *facts.ContainerMount) { m.Mount.FSType = "fuse.y" }},
		"one of its kind, mounted on the host":               {dev: unknown, spoil: func(b *fixture) { b.mount("/elsewhere", unknown) }},
		"one of its type, another source":                    {dev: unknown, change: func(m *facts.ContainerMount) { m.Mount.Source = "other" }},
		"one of its kind, another pod has others of":         {dev: unknown, found: true, spoil: another("uid-b", func(*facts.Mount) {})},
		"one of its kind, the pod has one of another type":   {dev: unknown, found: true, spoil: another("uid-a", func(m *facts.Mount) { m.FSType = "fuse.y" })},
		"one of its kind, the pod has one of another source": {dev: unknown, found: true, spoil: another("uid-a", func(m *facts.Mount) { m.Source = "other" })},
		"one of its kind, the pod has no volume of it":       {dev: unknown, found: true, spoil: another("uid-a", func(m *facts.Mount) { m.Path = "/k/pods/uid-a/volume-subpaths/pv2/app/0" })},
		"one of its kind, the pod has others of":             {dev: unknown, spoil: another("uid-a", func(*facts.Mount) {})},
		"the previous one, the pod has others of its kind":   {dev: previously, found: true, proven: true, spoil: another("uid-a", func(*facts.Mount) {})},
		"of another pod":                                     {dev: previously, change: func(m *facts.ContainerMount) { m.PodUID = "uid-z" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFUSEBench(t)
			b.renew()
			if tc.spoil != nil {
				tc.spoil(b)
			}
			if tc.change == nil {
				tc.change = func(*facts.ContainerMount) {}
			}
			m := b.run("uid-a", tc.dev, tc.change)
			b.heal(volume)
			got := b.inContainers()
			if len(got) == 1 != tc.found || len(got) > 1 {
				t.Fatalf("%+v", got)
			}
			if !tc.found {
				return
			}
			p := got[0]
			if p.Path != m.Path() || p.PodUID != "uid-a" || p.Named || len(p.Stack) != 1 || p.InContainer.Probe != deadSight ||
				(p.InContainer.Proof != "") != tc.proven || (p.InContainer.Unproven == "") != tc.proven {
				t.Errorf("%+v, %+v", p, p.InContainer)
			}
		})
	}
}

// noted puts into the record what a container had where it has something else now.
func recordedWith(attr facts.Attr) func(*fixture) {
	return func(b *fixture) {
		k := volumeKey(driver, volID)
		r := b.notes.records[k]
		r.Previous = []healer.PreviousSuperblock{{Dev: previously, BootID: "boot-1", Mounts: []healer.PreviousMount{{ID: 600, Namespace: 5000, Path: "/data", Attr: attr}}}}
		b.notes.records[k] = r
	}
}

// another returns a pod a second volume of the same type and source, with a change.
func another(podUID string, change func(*facts.Mount)) func(*fixture) {
	return func(b *fixture) {
		p := "/k/pods/" + podUID + "/volumes/kubernetes.io~csi/pv2/mount"
		b.mount(p, facts.Dev{Minor: 99})
		b.change(p, func(m *facts.Mount) {
			m.FSType, m.Source = fuseType, fuseSource
			change(m)
		})
	}
}

// A disk may have another node by now, and what a daemon does not serve has no
// unknown instances.
func TestContainersOfADisk(t *testing.T) {
	old := facts.Dev{Major: 8, Minor: 99}
	for name, tc := range map[string]struct {
		dev    facts.Dev
		source string
		found  bool
	}{
		"the previous one":       {disk, "/dev/sdb", true},
		"by another name":        {disk, "/dev/sdx", true},
		"an unknown one":         {old, "/dev/sdc", false},
		"one with the same name": {old, "/dev/sdc", false},
	} {
		b := newFixture(t)
		b.healthy()
		now := facts.Dev{Major: 8, Minor: 32}
		b.devices[now] = b.devices[disk]
		for _, p := range []string{staging, podA} {
			b.change(p, func(m *facts.Mount) { m.Dev, m.Source = now, "/dev/sdc" })
		}
		b.run("uid-a", tc.dev, func(m *facts.ContainerMount) { m.Mount.FSType, m.Mount.Source = "ext4", tc.source })
		b.heal(volume)
		if got := b.inContainers(); (len(got) == 1) != tc.found {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWhatAContainersMountAnswers(t *testing.T) {
	unknown := facts.Dev{Minor: 70}
	for name, tc := range map[string]struct {
		dev   facts.Dev
		probe facts.ContainerProbe
		shut  bool
		want  bool
		as    facts.ContainerProbe
	}{
		"it is dead":                   {dev: previously, probe: deadSight, want: true, as: deadSight},
		"it works":                     {dev: previously},
		"it answers, and is shut down": {dev: previously, shut: true, want: true},
		"it is silent":                 {dev: previously, probe: facts.ContainerProbe{TimedOut: true}, want: true, as: facts.ContainerProbe{TimedOut: true}},
		"it cannot be asked":           {dev: previously, probe: facts.ContainerProbe{Err: "no way in"}, want: true, as: facts.ContainerProbe{Err: "no way in"}},
		"its container has ended":      {dev: previously, probe: facts.ContainerProbe{Err: "it has ended", Ended: true}},
		"unknown, and works":           {dev: unknown},
		"unknown, shut down":           {dev: unknown, shut: true},
		"unknown, and silent":          {dev: unknown, probe: facts.ContainerProbe{TimedOut: true}},
		"unknown, and cannot be asked": {dev: unknown, probe: facts.ContainerProbe{Err: "no way in"}},
		"unknown, and dead":            {dev: unknown, probe: deadSight, want: true, as: deadSight},
	} {
		b := newFUSEBench(t)
		b.renew()
		m := b.run("uid-a", tc.dev, func(m *facts.ContainerMount) {
			if tc.shut {
				m.Mount.SuperOptions = []string{"shutdown"}
			}
		})
		b.inContainer[m.Path()] = tc.probe
		b.heal(volume)
		got := b.inContainers()
		if (len(got) == 1) != tc.want || tc.want && got[0].InContainer.Probe != tc.as {
			t.Errorf("%s: %+v", name, got)
		}
		// The driver may let the old daemon live for them.
		if lingers := len(b.last().Lingering) == 1; lingers != (name == "it works") {
			t.Errorf("%s: lingering %+v", name, b.last().Lingering)
		}
	}
}

// With --standalone a container of any pod counts, if it is proven to have the volume.
func TestContainersOfNoPod(t *testing.T) {
	for name, tc := range map[string]struct {
		podUID string
		dev    facts.Dev
		below  bool
		later  bool
		want   bool
	}{
		"the host has it too":      {dev: previously, below: true, want: true},
		"of another pod, the same": {podUID: "uid-z", dev: previously, below: true, want: true},
		"the host has it no more":  {dev: previously, want: true},
		"it came later":            {dev: previously, later: true},
		"an unknown one":           {dev: facts.Dev{Minor: 70}},
	} {
		b := newFUSEBench(t, func(c *Config) { c.Standalone = true })
		b.renew()
		if tc.below {
			b.change(podA, func(m *facts.Mount) { m.Dev = previously })
		}
		b.run(tc.podUID, tc.dev, func(m *facts.ContainerMount) {
			if tc.later {
				m.Mount.ID = 10000
			}
		})
		b.heal(volume)
		if got := b.inContainers(); (len(got) == 1) != tc.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// onBare has a container of a pod show the directory beneath a mount point.
func (b *fixture) onBare(podUID string) facts.ContainerMount {
	m := containerMountOf(len(b.containers), podUID, facts.Dev{Major: 254})
	m.Mount.Root, m.Mount.FSType, m.Mount.Source = podA, "ext4", "/dev/vda"
	b.containers = append(b.containers, m)
	return m
}

// It costs a walk through all processes.
func TestContainersAreScannedWhileAMountPointIsMountedAnew(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	for range 2 {
		if b.walks = nil; len(b.heal(volume).After.Conditions) != 0 || len(b.walks) != 0 {
			t.Fatalf("nothing happened, and it looked for containers of %v", b.walks)
		}
	}
	b.change(podA, func(m *facts.Mount) { m.ID = 500 })
	c := b.onBare("uid-a")
	b.onBare("uid-x") // of a pod that has not the volume
	b.fall(podA, healer.ContainerOnBareDirectory)
	for range 3 {
		b.heal(volume)
		if got := b.last().OnBare; len(got) != 1 || got[0].PID != c.PID || got[0].MountPoint != podA {
			t.Errorf("got %v", got)
		}
	}
	b.containers = nil
	b.recover(podA)
	for range 2 { // a container may just be starting
		b.walks = nil
		if b.heal(volume); len(b.walks) == 0 {
			t.Error("no scan")
		}
	}
	b.age(startGrace)
	for _, looks := range []bool{true, false} {
		b.walks = nil
		if b.heal(volume); (len(b.walks) > 0) != looks {
			t.Errorf("a minute later: %v, want one: %v", b.walks, looks)
		}
	}
}

// An earlier walk counts only for a volume without a record of this boot, and only where a container that
// starts now gets what works.
func TestWhichWalkCounts(t *testing.T) {
	another := facts.Dev{Minor: 99}
	for name, tc := range map[string]struct {
		change func(*fixture)
		counts bool
	}{
		"all works":         {func(*fixture) {}, true},
		"nothing is staged": {func(b *fixture) { b.unmount(staging) }, true},
		"a record of another boot": {func(b *fixture) {
			b.healthy()
			for k, r := range b.notes.records {
				r.BootID = "boot-0"
				b.notes.records[k] = r
			}
		}, true},
		"a record of this boot":     {func(b *fixture) { b.healthy(); b.change(podA, func(m *facts.Mount) { m.ID += 500 }) }, false},
		"a bare target":             {func(b *fixture) { b.unmount(podA) }, false},
		"a placeholder at a target": {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.Attr = placeholder }) }, false},
		"another one lives there":   {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.Dev = another }) }, false},
		"NFS, stale without a mount": {func(b *fixture) {
			for _, p := range []string{podA, staging} {
				b.change(p, func(m *facts.Mount) { m.FSType = "nfs4" })
			}
		}, false},
	} {
		b := newFixture(t)
		b.answers[another] = b.answers[disk]
		tc.change(b)
		b.before, b.engine.scanned = nil, newScannedVolumes()
		if b.heal(volume); len(b.before) == 0 || slices.Contains(b.before, !tc.counts) {
			t.Errorf("%s: %v, want %v", name, b.before, tc.counts)
		}
	}
}

// age makes the mounts of the record older.
func (b *fixture) age(by time.Duration) {
	for k, r := range b.notes.records {
		for i := range r.MountPoints {
			if r.MountPoints[i].Since != 0 {
				r.MountPoints[i].Since -= by
			}
		}
		b.notes.records[k] = r
	}
}

func TestContainersThatKeptAPlaceholder(t *testing.T) {
	for name, tc := range map[string]struct {
		attr  facts.Attr
		want  facts.Attr
		found bool
	}{
		"a placeholder":                  {placeholder, 0, true},
		"one that was marked":            {facts.AttrNoSymFollow | facts.AttrNoDirAtime, 0, true},
		"one that was made read-only":    {facts.AttrReadOnly | facts.AttrNoDirAtime, 0, true},
		"a subPath of a placeholder":     {placeholder &^ facts.AttrNoSymFollow, 0, true},
		"as marked as the volume is":     {facts.AttrNoDirAtime, facts.AttrNoDirAtime, false},
		"one that was marked, read-only": {facts.AttrReadOnly | facts.AttrNoDirAtime, 0, true},
		"nodiratime":                     {facts.AttrNoDirAtime | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec, 0, false},
		"read-only":                      {facts.AttrReadOnly, 0, false},
		"the pod's own options":          {facts.AttrReadOnly | facts.AttrNoSymFollow, 0, false},
		"a volume that is mounted so":    {placeholder, facts.AttrNoSymFollow, false},
		"a container as it ought to be":  {0, 0, false},
	} {
		b := newFixture(t)
		b.change(podA, func(m *facts.Mount) { m.Attr = tc.want })
		b.healthy()
		b.change(podA, func(m *facts.Mount) { m.ID = 500 })
		m := containerMountOf(0, "uid-a", disk)
		m.Mount.Attr = tc.attr
		b.containers = append(b.containers, m)
		b.heal(volume)
		if got := b.last().OnPlaceholder; (len(got) == 1) != tc.found {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A walk over the processes that was cut short shows of no container that there is none:
// the next call looks again, and none says before that all is well.
func TestContainersAfterAScanThatWasCut(t *testing.T) {
	b := newFUSEBench(t)
	cut := []facts.Unverified{{Why: facts.WhyScanCut}}
	b.engine.scanned, b.unverified = newScannedVolumes(), cut
	b.heal(volume)
	b.unverified, b.walks = nil, nil
	b.run("uid-a", facts.Dev{Minor: 70})
	if b.heal(volume); len(b.walks) == 0 || len(b.inContainers()) != 1 {
		t.Errorf("what a daemon left in a container: looked for those of %v, found %+v", b.walks, b.inContainers())
	}

	b = newFixture(t)
	b.healthy()
	b.change(podA, func(m *facts.Mount) { m.ID = 500 })
	b.unverified = cut
	if b.heal(volume); !slices.Equal(b.last().UnverifiedStart, cut) {
		t.Errorf("it is not said that some container may have the bare directory: %+v", b.last().UnverifiedStart)
	}
	b.age(2 * startGrace)
	b.heal(volume)
	b.unverified, b.walks = nil, nil
	bare := containerMountOf(0, "uid-a", facts.Dev{Major: 254})
	bare.Mount.Root = podA
	b.containers = append(b.containers, bare)
	if b.heal(volume); len(b.walks) == 0 || len(b.last().OnBare) != 1 {
		t.Errorf("the bare directory: looked for those of %v, found %+v", b.walks, b.last().OnBare)
	}
}

// Where nothing is staged, each pod's mount may have a source of its own: whichever the call names, a
// container has what its own pod's mount was before.
func TestContainersOfPodsWhoseMountsHaveOtherSources(t *testing.T) {
	b := newFixture(t)
	b.unmount(staging)
	b.publish(podB)
	for p, dev := range map[string]facts.Dev{podA: previously, podB: third} {
		b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = dev, fuseType, fuseSource+p })
		b.answers[dev] = goodSight
	}
	b.mounts = append(b.mounts, facts.Mount{ID: 9999, OldID: 9999, OldParent: 1, Path: "/some", Root: "/", Dev: facts.Dev{Minor: 33}})
	b.healthy()
	b.run("uid-a", previously, func(m *facts.ContainerMount) { m.Mount.Source = fuseSource + podA })
	b.change(podA, func(m *facts.Mount) { m.Dev, m.ID = renewed, 10000 })
	b.answers[renewed] = goodSight
	for _, p := range []string{podB, podA} {
		if b.heal(healer.Volume{ID: volID, Path: p}); len(b.inContainers()) != 1 {
			t.Errorf("by %s: %+v", p, b.inContainers())
		}
	}
}
