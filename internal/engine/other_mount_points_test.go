package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func expectMountPoints(t *testing.T, b *fixture, want ...string) {
	t.Helper()
	got := mountPointsOf(b)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("mount points %q\n  want %q", got, want)
	}
}

func TestOtherPodsMountPointsAreFound(t *testing.T) {
	b := newFixture(t)
	b.publish(podB)
	b.heal(volume)
	expectMountPoints(t, b, podA, staging, podB)
	if p, _ := b.last().MountPoint(podB); p.Named || p.PodUID != "uid-b" || p.Role != healer.RoleTarget {
		t.Errorf("%+v", p)
	}
}

// Inline volumes of two pods may share the directory's name.
func TestSameNameIsNotSameVolume(t *testing.T) {
	otherDriver := directory(volID)
	otherDriver.VolData.DriverName = "other.example.com"
	for name, l := range map[string]facts.PathInfo{
		"another handle": directory("other"), "no vol_data.json": directory(""), "another driver": otherDriver,
	} {
		b := newFixture(t)
		b.mount(podB, disk)
		b.files[podB] = l
		b.heal(volume)
		if _, found := b.last().MountPoint(podB); found {
			t.Errorf("%s: taken for this volume's", name)
		}
	}
}

// One inline volume is not asked for the health of another, which other pods may have hang or fail.
func TestInlineVolumesOfOneNameAreNotAsked(t *testing.T) {
	b := newFixture(t)
	b.unmount(staging)
	inline := func(handle string) facts.PathInfo {
		l := directory(handle)
		l.VolData.Lifecycle = "Ephemeral"
		return l
	}
	b.mount(podB, facts.Dev{Major: 8, Minor: 99})
	b.files[podA], b.files[podB] = inline(volID), inline("other")
	b.onLook = func(q node.InspectQuery) error {
		if q.Probe != nil && q.Probe.Path == podB {
			t.Error("the volume of another pod was asked")
		}
		return nil
	}
	b.heal(volume)
	expectMountPoints(t, b, podA, staging)
}

func TestNamesThatOnlyStartAlike(t *testing.T) {
	b := newFixture(t)
	for _, p := range []string{
		"/k/pods/uid-b/volumes/kubernetes.io~csi/pv10/mount", "/k/pods/uid-b/volumes/kubernetes.io~csi/pv1/mount/sub",
		"/k/pods/uid-b/volume-subpaths/pv1/c/0",
	} {
		b.publish(p)
	}
	b.heal(volume)
	expectMountPoints(t, b, podA, staging)
}

// What shares its superblock with the other mount points needs no look of its own.
func TestSubPathsOfAPreviousInstanceAreFound(t *testing.T) {
	const sub = "/k/pods/uid-a/volume-subpaths/pv1/app/0"
	for name, tc := range map[string]struct {
		path  string
		dev   facts.Dev
		anew  bool // the server
		spoil func(*fixture)
		found bool
	}{
		"the previous one":            {path: sub, dev: previously, found: true},
		"as on the host":              {path: sub, dev: renewed},
		"an unknown one":              {path: sub, dev: facts.Dev{Minor: 70}},
		"after a start, unknown":      {path: sub, dev: facts.Dev{Minor: 70}, anew: true, found: true},
		"of another volume":           {path: "/k/pods/uid-a/volume-subpaths/pv2/app/0", dev: previously},
		"of a name that starts alike": {path: "/k/pods/uid-a/volume-subpaths/pv10/app/0", dev: previously},
		"of a pod that has it not":    {path: "/k/pods/uid-z/volume-subpaths/pv1/app/0", dev: previously},
		"no such path of kubelet's":   {path: "/k/pods/uid-a/volume-subpaths/pv1/app", dev: previously},
		"the pod's is another volume's": {path: "/k/pods/uid-b/volume-subpaths/pv1/app/0", dev: previously, spoil: func(b *fixture) {
			b.mount(podB, renewed)
			b.files[podB] = directory("other")
		}},
		"a sibling pod's": {path: "/k/pods/uid-b/volume-subpaths/pv1/app/0", dev: previously, found: true, spoil: func(b *fixture) {
			b.publish(podB)
			b.change(podB, func(m *facts.Mount) { m.Dev = renewed })
		}},
	} {
		b := newFUSEBench(t)
		b.renew()
		if tc.anew {
			b.engine.scanned = newScannedVolumes()
		}
		b.mount(tc.path, tc.dev)
		b.files[tc.path] = directory("")
		if tc.spoil != nil {
			tc.spoil(b)
		}
		b.heal(volume)
		p, found := b.last().MountPoint(tc.path)
		if found != tc.found || found && (p.Role != healer.RoleTarget || p.Named || p.PodUID == "" || len(p.Stack) != 1) {
			t.Errorf("%s: %v, %+v", name, found, p)
		}
	}
}

var recordedMountPointThatIsEmptyExamples = map[string]struct {
	spoil           func(*fixture)
	inCase, dormant bool
	unjudged        string
}{
	"its pod runs":        {spoil: func(b *fixture) { b.pods["uid-b"] = disk }, inCase: true},
	"the cluster says so": {spoil: func(b *fixture) { b.notes.wanted = map[string]bool{"uid-b": true} }, inCase: true},
	"before this boot": {spoil: func(b *fixture) {
		b.notes.wanted = map[string]bool{"uid-b": true}
		r := b.notes.records[volumeKey(driver, volID)]
		r.BootID = "another"
		b.notes.records[volumeKey(driver, volID)] = r
	}, dormant: true, unjudged: "kubelet may be about to publish it"},
	"its pod has another": {spoil: func(b *fixture) { b.pods["uid-b"] = facts.Dev{Major: 8, Minor: 99} }, dormant: true},
	"no container runs":   {spoil: func(*fixture) {}, dormant: true},
	"nobody says":         {spoil: func(b *fixture) { b.notes.unknown = errors.New("the API is away") }, dormant: true, unjudged: "nothing shows that it is wanted: the API is away"},
	"nobody says, and its pod runs": {spoil: func(b *fixture) {
		b.notes.unknown = errors.New("the API is away")
		b.pods["uid-b"] = disk
	}, inCase: true},
	"nobody says, and nothing names a volume": {spoil: func(b *fixture) {
		b.notes.unknown = errors.New("the API is away")
		b.files[podB] = directory("")
	}},
	"it is gone": {spoil: func(b *fixture) {
		b.files[podB] = facts.PathInfo{PathFacts: facts.PathFacts{ParentErrno: syscall.ENOENT}}
	}},
	"it is another volume's":  {spoil: func(b *fixture) { b.files[podB] = directory("other") }},
	"nothing names a volume":  {spoil: func(b *fixture) { b.files[podB] = directory("") }},
	"and staging is gone too": {spoil: func(b *fixture) { b.pods["uid-b"] = disk; b.unmount(staging) }, inCase: true},
}

// A recorded mount point that lost its mount, by what is known of its pod.
func TestRecordedMountPointThatIsEmpty(t *testing.T) {
	for name, tc := range recordedMountPointThatIsEmptyExamples {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.publish(podB)
			b.healthy()
			b.unmount(podB)
			tc.spoil(b)
			b.heal(volume)
			c := b.last()
			p, inCase := c.MountPoint(podB)
			if inCase != tc.inCase || inCase && (len(p.Stack) != 0 || p.Want == nil) {
				t.Errorf("in the case: %v, %+v", inCase, p)
			}
			unjudged := ""
			for _, u := range c.Unjudged {
				unjudged += u.MountPoint.Path + " " + u.Why
			}
			if want := tc.unjudged; want != "" && unjudged != podB+" "+want && !strings.HasSuffix(unjudged, want) || want == "" && unjudged != "" {
				t.Errorf("not judged: %q", unjudged)
			}
			if dormant := len(c.Dormant) == 1 && c.Dormant[0].Path == podB; dormant != tc.dormant {
				t.Errorf("dormant: %+v", c.Dormant)
			}
			r, _ := b.notes.Load(driver, volID)
			if kept := r.MountPoint(podB) != nil; !tc.inCase && kept != tc.dormant {
				t.Errorf("kept in the record: %v", kept)
			}
		})
	}
}

// After a boot kubelet publishes the volume to one pod after the other. A check in between makes the record one
// of this boot, and the next one must not take what is about to be published for lost.
func TestMountPointThatWasNotMountedSinceTheBoot(t *testing.T) {
	b := newFixture(t)
	b.publish(podB)
	b.healthy()
	b.unmount(podB)
	recordedMountPointThatIsEmptyExamples["before this boot"].spoil(b)
	for call := range 2 {
		b.heal(volume)
		if c := b.last(); len(c.Unjudged) != 1 || c.Unjudged[0].MountPoint.Path != podB {
			t.Errorf("call %d: not judged: %+v, judged: %+v", call, c.Unjudged, c.MountPoints)
		}
	}
}

// Below a --path-root kubelet keeps no files. A call about one mount point must not
// make the record forget another that is mounted as recorded.
func TestMountPointsOutsideKubeletAreRemembered(t *testing.T) {
	const one, two = "/srv/one", "/srv/two"
	b := newFixture(t, func(c *Config) { c.Standalone = true })
	b.unmount(podA)
	for _, p := range []string{one, two} {
		b.mount(p, disk)
		b.files[p] = directory("")
	}
	b.heal(healer.Volume{ID: volID, Path: one, StagingPath: staging})
	b.heal(healer.Volume{ID: volID, Path: two, StagingPath: staging})
	if r, _ := b.notes.Load(driver, volID); r.MountPoint(one) == nil {
		t.Errorf("the record has only %+v", r.MountPoints)
	}
}

func TestStagedMountPointIsFound(t *testing.T) {
	below := staging + "/" + "0001-pool"
	for name, tc := range map[string]struct {
		at, named string
	}{
		"where kubelet stages": {staging, ""},
		"below it":             {below, ""},
		"where the caller says": {
			"/k/plugins/kubernetes.io/csi/pv/pv1/globalmount",
			"/k/plugins/kubernetes.io/csi/pv/pv1/globalmount",
		},
	} {
		b := newFixture(t)
		b.unmount(staging)
		b.publish(tc.at)
		b.heal(healer.Volume{ID: volID, Path: podA, StagingPath: tc.named})
		s, found := b.last().Staged()
		if !found || s.Path != tc.at || len(s.Stack) != 1 || s.Named != (tc.named != "") {
			t.Errorf("%s: %v, %+v", name, found, s)
		}
	}
}

func TestStagedMountPointOfTheRecord(t *testing.T) {
	b := newFixture(t)
	b.healthy()
	b.unmount(staging)
	b.files[staging] = facts.PathInfo{PathFacts: facts.PathFacts{ParentErrno: syscall.ENOENT}}
	b.heal(healer.Volume{ID: volID, Path: podA})
	if s, found := b.last().Staged(); !found || s.Path != staging || len(s.Stack) != 0 || s.Want == nil {
		t.Errorf("%v, %+v", found, s)
	}
}

func TestStagedOnly(t *testing.T) {
	for _, v := range []healer.Volume{{ID: volID, Path: staging}, {ID: volID, Path: staging, StagingPath: staging}} {
		b := newFixture(t)
		b.unmount(podA)
		b.heal(v)
		if c := b.last(); len(c.MountPoints) != 1 || c.MountPoints[0].Role != healer.RoleStaging || !c.MountPoints[0].Named {
			t.Errorf("%+v", c.MountPoints)
		}
	}
}

// Nobody vouches for an empty mount point that a check names of its own accord.
func TestUnaskedCheckOfAnEmptyMountPoint(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*fixture)
		found bool
	}{
		"its pod runs":              {func(b *fixture) { b.pods["uid-a"] = disk }, true},
		"the cluster wants it":      {func(b *fixture) { b.notes.wanted = map[string]bool{"uid-a": true} }, true},
		"its pod starts, or ends":   {func(*fixture) {}, false},
		"it was never seen mounted": {func(b *fixture) { clear(b.notes.records) }, false},
		"nobody says":               {func(b *fixture) { b.notes.unknown = errors.New("the API is away") }, true},
		"no walk sees all":          {func(b *fixture) { b.cut = errors.New("not all processes could be read") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.healthy()
			b.unmount(podA)
			tc.spoil(b)
			v := healer.Volume{ID: volID, Path: podA, Unasked: true}
			if r, err := b.engine.Check(context.Background(), v); (err == nil) != tc.found || !tc.found && healer.KindOf(err) != healer.KindNotFound {
				t.Errorf("unasked: %v", err)
			} else if unjudged := len(r.After.Case.Unjudged) == 1; unjudged != (name == "nobody says" || name == "no walk sees all") {
				t.Errorf("unasked: %s, %+v", r.Verdict(), r.After.Case.Unjudged)
			}
			v.Unasked = false
			if _, err := b.engine.Check(context.Background(), v); err != nil {
				t.Errorf("asked: %v", err)
			}
		})
	}
}

// A path that only kubelet's file names is looked at where whoever asks has found it, and where
// nothing at all of the volume is mounted.
func TestPublishedPathsAreNamed(t *testing.T) {
	b := newFixture(t)
	b.notes.unknown = errors.New("the API is away")
	b.files[podB] = directory(volID)
	v := healer.Volume{ID: volID, Path: podA, Unasked: true, Published: []string{podA, podB}}
	check := func(want ...string) {
		t.Helper()
		r, err := b.engine.Check(context.Background(), v)
		var got []string
		for _, u := range r.After.Case.Unjudged {
			got = append(got, u.MountPoint.Path)
		}
		if slices.Sort(got); err != nil || r.Verdict() != healer.NotJudged || !slices.Equal(got, want) {
			t.Errorf("%v, %s: %q", err, r.Verdict(), got)
		}
	}
	check(podB)
	b.unmount(podA)
	check(podA, podB)
	b.unmount(staging)
	check(podA, podB)
	clear(b.notes.records)
	check(podA, podB)
}
