package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// emptyDir is a mount of another pod that is no CSI volume.
const emptyDir = "/k/pods/uid-z/volumes/kubernetes.io~empty-dir/x"

// mountEmptyDir mounts a tmpfs at a path, as kubelet does for an emptyDir.
func mountEmptyDir(b *fixture, path string) {
	b.mount(path, facts.Dev{Minor: 90})
	b.change(path, func(m *facts.Mount) { m.FSType, m.Source = "tmpfs", "tmpfs" })
	b.files[path] = directory("")
}

// recorded returns the paths in the record of the test's volume.
func recorded(b *fixture) []string {
	r, _ := b.notes.Load(driver, volID)
	if r == nil {
		return nil
	}
	var paths []string
	for _, p := range r.MountPoints {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	return paths
}

func TestMadeUpVolumesAreNotRecorded(t *testing.T) {
	b := newFixture(t)
	mountEmptyDir(b, emptyDir)
	for i := range 30 {
		for _, v := range []healer.Volume{
			{ID: fmt.Sprint("made-up-", i), Path: emptyDir},
			{ID: fmt.Sprint("made-up-", i), Path: emptyDir, StagingPath: "/k/pods/uid-z"},
		} {
			if got := b.heal(v).Verdict(); got != healer.Healthy {
				t.Fatalf("%+v is %s", v, got)
			}
		}
	}
	if b.notes.saves != 0 {
		t.Errorf("%d records of volumes that do not exist", b.notes.saves)
	}
}

// The record has the mount points that kubelet's files name, whatever a call names.
func TestRecordHasOnlyProvenMountPoints(t *testing.T) {
	nested := staging + "/cache"
	both := []string{staging, podA} // in the order of their names
	for name, tc := range map[string]struct {
		change func(*fixture)
		call   healer.Volume
		// first is what a call records without an earlier call.
		first []string
	}{
		"volume_path is an emptyDir":         {call: healer.Volume{Path: emptyDir, StagingPath: staging}, first: []string{staging}},
		"nothing but an emptyDir":            {call: healer.Volume{Path: emptyDir}, first: []string{staging}},
		"staging_target_path is an emptyDir": {call: healer.Volume{Path: podA, StagingPath: emptyDir}, first: both},
		"an emptyDir below the staged mount": {call: healer.Volume{Path: nested, StagingPath: staging}, first: []string{staging}},
		"the same, staging_target_path left out": {
			call: healer.Volume{Path: nested}, first: []string{staging},
		},
		"staging_target_path is the published path": {call: healer.Volume{Path: podA, StagingPath: podA}, first: both},
		"staging_target_path is a mount above": {
			change: func(b *fixture) {
				b.mount("/k", facts.Dev{Minor: 91})
				b.mounts[len(b.mounts)-1].OldID = 1000
				b.change(podA, func(m *facts.Mount) { m.OldParent = 1000 })
				b.change(staging, func(m *facts.Mount) { m.OldParent = 1000 })
			},
			call: healer.Volume{Path: podA, StagingPath: "/k"}, first: both,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			mountEmptyDir(b, emptyDir)
			mountEmptyDir(b, nested)
			b.files[nested] = directory(volID) // as of all paths below the staging path
			stagedID := b.mounts[1].OldID
			b.change(nested, func(m *facts.Mount) { m.OldParent = stagedID })
			if tc.change != nil {
				tc.change(b)
			}
			tc.call.ID = volID
			b.heal(tc.call)
			if got := recorded(b); !slices.Equal(got, tc.first) {
				t.Errorf("first recorded %q, want %q", got, tc.first)
			}
			b.healthy()
			before, saves := recorded(b), b.notes.saves
			b.heal(tc.call)
			r, _ := b.notes.Load(driver, volID)
			if got := recorded(b); !slices.Equal(got, before) || !slices.Equal(got, both) || b.notes.saves != saves {
				t.Errorf("then recorded %q after %q, saves %d after %d", got, before, b.notes.saves, saves)
			}
			if r.FSType != "ext4" || r.Identity.Serial != "serial-1" || r.Staged().Path != staging {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Kubelet's file for a raw block volume lies elsewhere.
func TestRecordOfABlockVolume(t *testing.T) {
	b := newBlockBench(t)
	b.heal(healer.Volume{ID: volID, Path: podLink})
	if got := recorded(b); !slices.Equal(got, []string{blockMountPoint}) {
		t.Errorf("recorded %q", got)
	}
}

// A driver may stage below the path that it was given, and hand out a directory of
// what is there.
func TestRecordOfWhatIsStagedBelow(t *testing.T) {
	below := staging + "/0001-pool"
	b := newFixture(t)
	b.unmount(staging)
	b.publish(below)
	for _, call := range []healer.Volume{
		{Path: podA, StagingPath: staging},
		{Path: podA, StagingPath: below},
		{Path: podA},
		{Path: below + "/sub", StagingPath: staging},
		{Path: below},
	} {
		b.files[call.Path] = directory(volID)
		call.ID = volID
		b.heal(call)
		if got := recorded(b); !slices.Equal(got, []string{below, podA}) || b.notes.saves != 1 {
			t.Errorf("%+v: recorded %q, %d saves", call, got, b.notes.saves)
		}
	}
}

// A mount above an empty published path is not the volume.
func TestRecordIsNotOfTheMountAbove(t *testing.T) {
	b := newFixture(t)
	b.unmount(podA)
	b.unmount(staging)
	b.mount("/k", facts.Dev{Minor: 91})
	b.files["/k"] = directory("")
	b.heal(healer.Volume{ID: volID, Path: podA, StagingPath: "/k"})
	if p := b.last().MountPoints[0]; b.notes.saves != 0 || p.Mounted() || p.Proven {
		t.Errorf("%+v, %+v", p, b.notes.records)
	}
}

// Where no file of kubelet's lies, the call proves the paths that it names, if
// there is no orchestrator.
func TestStandaloneRecordsTheNamedMountPoints(t *testing.T) {
	const one, two = "/srv/one", "/srv/two"
	for _, standalone := range []bool{false, true} {
		b := newFixture(t, func(c *Config) { c.Standalone = standalone })
		for _, p := range []string{one, two} {
			mountEmptyDir(b, p)
		}
		b.heal(healer.Volume{ID: volID, Path: one})
		want := []string{staging} // which kubelet's file proves
		if standalone {
			want = append(want, one)
		}
		if got := recorded(b); !slices.Equal(got, want) {
			t.Errorf("standalone %v: recorded %q, want %q", standalone, got, want)
		}
		b.unmount(one)
		if b.heal(healer.Volume{ID: volID, Path: one}); b.last().Proven() != standalone {
			t.Errorf("standalone %v: proven is %v after it was lost", standalone, b.last().Proven())
		}
	}
}

// Kubelet's file has the last word, also with --standalone.
func TestKubeletContradictsTheCaller(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Standalone = true })
	b.files[staging] = directory("other")
	b.heal(volume)
	if got := recorded(b); !slices.Equal(got, []string{podA}) {
		t.Errorf("recorded %q", got)
	}
}

// Without kubelet's file the record proves a mount point as long as it is as recorded.
func TestRecordProvesItsMountPoints(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fixture)
		want   []string
	}{
		"as recorded": {func(*fixture) {}, []string{staging, podA}},
		"another filesystem": {func(b *fixture) {
			b.unmount(podA)
			mountEmptyDir(b, podA)
		}, []string{staging}},
		"another directory of it": {func(b *fixture) { b.change(podA, func(m *facts.Mount) { m.Root = "/sub" }) }, []string{staging}},
		"before this boot": {func(b *fixture) {
			r := b.notes.records[volumeKey(driver, volID)]
			r.BootID = "another"
			b.notes.records[volumeKey(driver, volID)] = r
		}, []string{staging}},
	} {
		b := newFixture(t)
		b.healthy()
		tc.change(b)
		b.files[podA] = directory("") // torn, say
		b.heal(volume)
		if got := recorded(b); !slices.Equal(got, tc.want) {
			t.Errorf("%s: recorded %q, want %q", name, got, tc.want)
		}
	}
}

// Others hear of an answer only if all that it speaks of is the volume's.
func TestProvenCase(t *testing.T) {
	for name, tc := range map[string]struct {
		change     func(*fixture)
		call       healer.Volume
		standalone bool
		want       bool
	}{
		"as kubelet has it": {call: volume, want: true},
		"only published":    {call: healer.Volume{Path: podA}, change: func(b *fixture) { b.unmount(staging) }, want: true},
		"nothing is staged": {call: volume, change: func(b *fixture) { b.unmount(staging); delete(b.files, staging) }, want: true},
		"nothing is where it is to be staged": {call: healer.Volume{Path: staging}, change: func(b *fixture) {
			b.unmount(staging)
			b.files[staging] = directory("")
		}},
		"lost":                               {call: volume, change: func(b *fixture) { b.unmount(podA) }, want: true},
		"volume_path is an emptyDir":         {call: healer.Volume{Path: emptyDir, StagingPath: staging}},
		"volume_path is empty":               {call: healer.Volume{Path: emptyDir, StagingPath: staging}, change: func(b *fixture) { b.unmount(emptyDir) }},
		"staging_target_path is an emptyDir": {call: healer.Volume{Path: podA, StagingPath: emptyDir}},
		"staging_target_path is another volume's": {
			call: healer.Volume{Path: podA, StagingPath: podB}, change: func(b *fixture) { b.publish(podB); b.files[podB] = directory("other") },
		},
		"no file of kubelet's":                         {call: volume, change: func(b *fixture) { b.files[podA] = directory("") }},
		"standalone":                                   {call: healer.Volume{Path: emptyDir}, standalone: true, want: true},
		"standalone, and nothing is mounted":           {call: healer.Volume{Path: emptyDir}, change: func(b *fixture) { b.unmount(emptyDir) }, standalone: true},
		"standalone, staged by another name":           {call: healer.Volume{Path: podA, StagingPath: emptyDir}, standalone: true, want: true},
		"the caller names another volume of kubelet's": {call: healer.Volume{Path: emptyDir, StagingPath: staging, ID: "other"}},
	} {
		b := newFixture(t, func(c *Config) { c.Standalone = tc.standalone })
		mountEmptyDir(b, emptyDir)
		if tc.change != nil {
			tc.change(b)
		}
		if tc.call.ID == "" {
			tc.call.ID = volID
		}
		b.heal(tc.call)
		if got := b.last().Proven(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestStagedMountPointThatCounts(t *testing.T) {
	mountPoint := func(proven bool, stack ...string) healer.MountPoint {
		p := healer.MountPoint{Role: healer.RoleStaging, Path: staging, Proven: proven}
		for _, at := range stack {
			p.Stack = append(p.Stack, facts.Mount{Path: at})
		}
		return p
	}
	// From what counts least to what counts most.
	order := []healer.MountPoint{
		mountPoint(false), mountPoint(false, "/k"), mountPoint(false, staging), mountPoint(true), mountPoint(true, "/k"), mountPoint(true, staging),
	}
	for i := range order {
		for j := range order {
			want := order[max(i, j)]
			c := healer.Case{MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Path: podA, Proven: true}, order[i], order[j]}}
			if got, found := c.Staged(); !found || got.Proven != want.Proven || !slices.EqualFunc(got.Stack, want.Stack, facts.Mount.Same) || got.Mounted() != want.Mounted() {
				t.Errorf("%d and %d: %+v", i, j, got)
			}
		}
	}
	if got, found := (healer.Case{MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Proven: true}}}).Staged(); found {
		t.Errorf("%+v", got)
	}
}
