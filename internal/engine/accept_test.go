package engine

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const fine = healer.Kind(-1) // a report, no error

// mustBe makes a call and compares the kind of its error.
func mustBe(t *testing.T, b *fixture, v healer.Volume, want healer.Kind, names string) {
	t.Helper()
	_, err := b.engine.Heal(context.Background(), v)
	switch {
	case want == fine && err != nil:
		t.Errorf("got %v, want a report", err)
	case want != fine && (err == nil || healer.KindOf(err) != want || !strings.Contains(err.Error(), names)):
		t.Errorf("got %v, want kind %d naming %s", err, want, names)
	}
}

func TestWhatIsAtThePath(t *testing.T) {
	at := func(change func(*facts.PathInfo)) facts.PathInfo {
		l := directory("")
		change(&l)
		return l
	}
	for name, tc := range map[string]struct {
		look    facts.PathInfo
		mounted bool
		want    healer.Kind
	}{
		"a directory":             {look: directory(""), want: fine},
		"a file":                  {look: at(func(l *facts.PathInfo) { l.Kind = facts.KindFile }), want: fine},
		"this volume's directory": {look: directory(volID), want: fine},
		"another handle":          {look: directory("other"), want: healer.KindNotFound},
		"another handle, mounted": {look: directory("other"), mounted: true, want: healer.KindNotFound},
		"a handle of no name":     {look: at(func(l *facts.PathInfo) { l.VolData = &facts.VolData{} }), want: fine},
		"nothing":                 {look: at(func(l *facts.PathInfo) { l.Errno = syscall.ENOENT }), want: healer.KindNotFound},
		"no directory above":      {look: at(func(l *facts.PathInfo) { l.ParentErrno = syscall.ENOENT }), want: healer.KindNotFound},
		"a file above":            {look: at(func(l *facts.PathInfo) { l.ParentErrno = syscall.ENOTDIR }), want: healer.KindNotFound},
		"a link above":            {look: at(func(l *facts.PathInfo) { l.ParentErrno = syscall.ELOOP }), want: healer.KindInvalid},
		"a link":                  {look: at(func(l *facts.PathInfo) { l.Kind, l.Link = facts.KindSymlink, "/k" }), want: healer.KindInvalid},
		"too long a name":         {look: at(func(l *facts.PathInfo) { l.Errno = syscall.ENAMETOOLONG }), want: healer.KindInvalid},
		"no permission above":     {look: at(func(l *facts.PathInfo) { l.ParentErrno = syscall.EACCES }), want: healer.KindUnknown},
		"an I/O error there":      {look: at(func(l *facts.PathInfo) { l.Errno = syscall.EIO }), want: healer.KindUnknown},
		"a dead mount":            {look: at(func(l *facts.PathInfo) { l.Errno = syscall.EIO }), mounted: true, want: fine},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.files[podA] = tc.look
			if !tc.mounted {
				b.unmount(podA)
			}
			mustBe(t, b, volume, tc.want, "volume_path")
		})
	}
}

func TestWhatIsAtTheStagingPath(t *testing.T) {
	for name, tc := range map[string]struct {
		look facts.PathInfo
		want healer.Kind
	}{
		"gone":           {facts.PathInfo{PathFacts: facts.PathFacts{ParentErrno: syscall.ENOENT}}, fine},
		"a link above":   {facts.PathInfo{PathFacts: facts.PathFacts{ParentErrno: syscall.ELOOP}}, healer.KindInvalid},
		"a link":         {facts.PathInfo{Kind: facts.KindSymlink, PathFacts: facts.PathFacts{Link: "/k"}}, healer.KindInvalid},
		"another handle": {directory("other"), fine}, // a condition
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.unmount(staging)
			b.files[staging] = tc.look
			mustBe(t, b, volume, tc.want, "staging_target_path")
		})
	}
}

func TestDriverIsTheOneOfVolData(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Drivers = nil })
	for _, p := range []string{podA, staging} {
		l := directory(volID)
		l.VolData.DriverName = "real.example.com"
		b.files[p] = l
	}
	if r := b.heal(volume); r.Driver != "real.example.com" {
		t.Errorf("driver %q", r.Driver)
	}
	if r, _ := b.notes.Load("real.example.com", volID); r == nil {
		t.Error("the record has another driver")
	}
}

func TestOnlyTheNamedDriversAreServed(t *testing.T) {
	for name, tc := range map[string]struct {
		drivers []string
		want    healer.Kind
	}{
		"all":           {nil, fine},
		"it":            {[]string{"real.example.com"}, fine},
		"it and others": {[]string{driver, "real.example.com"}, fine},
		"others":        {[]string{driver, "other.example.com"}, healer.KindNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, func(c *Config) { c.Drivers = tc.drivers })
			for _, p := range []string{podA, staging} {
				l := directory(volID)
				l.VolData.DriverName = "real.example.com"
				b.files[p] = l
			}
			mustBe(t, b, volume, tc.want, "volume_id: names a volume of driver real.example.com")
		})
	}
}

func TestCapabilityMustFit(t *testing.T) {
	device := facts.PathInfo{Kind: facts.KindBlock, PathFacts: facts.PathFacts{Rdev: disk}}
	block, mount := healer.Capability{Access: healer.AccessBlock}, healer.Capability{Access: healer.AccessMount}
	mountOf := func(fsType string) healer.Capability {
		return healer.Capability{Access: healer.AccessMount, FSType: fsType}
	}
	for name, tc := range map[string]struct {
		file       facts.PathInfo
		fs         string
		capability healer.Capability
		want       healer.Kind
	}{
		"mount":                {file: directory(volID), fs: "ext4", capability: mount, want: fine},
		"block on a directory": {file: directory(volID), fs: "ext4", capability: block, want: healer.KindInvalid},
		"mount on a device":    {file: device, fs: "devtmpfs", capability: mount, want: healer.KindInvalid},
		"block on a device":    {file: device, fs: "devtmpfs", capability: block, want: fine},
		"block on a file":      {file: facts.PathInfo{Kind: facts.KindFile}, fs: "ext4", capability: block, want: fine}, // a condition
		"that filesystem":      {file: directory(volID), fs: "xfs", capability: mountOf("xfs"), want: fine},
		"another filesystem":   {file: directory(volID), fs: "xfs", capability: mountOf("ext4"), want: healer.KindInvalid},
		"one family":           {file: directory(volID), fs: "ext4", capability: mountOf("ext3"), want: fine},
		"a driver's own type":  {file: directory(volID), fs: "fuse.x", capability: mountOf("ext4"), want: fine},
		"a foreign name":       {file: directory(volID), fs: "ext4", capability: mountOf("nfs"), want: fine},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.files[podA] = tc.file
			b.change(podA, func(m *facts.Mount) { m.FSType = tc.fs })
			v := volume
			v.Capability = &tc.capability
			mustBe(t, b, v, tc.want, "volume_capability")
			if tc.want == fine && b.last().Block != (tc.capability.Access == healer.AccessBlock) {
				t.Errorf("Block is %v", b.last().Block)
			}
		})
	}
}

// Fluid publishes a symbolic link to its FUSE mount where a Dataset has the node publish method symlink.
func TestSymbolicLinkOfADriver(t *testing.T) {
	for _, v := range []healer.Volume{{ID: volID, Path: podA}, {ID: volID, Path: podA, Unasked: true, Published: []string{podA}}} {
		b := newFixture(t)
		b.unmount(podA)
		b.unmount(staging)
		l := directory(volID)
		l.Kind, l.Link = facts.KindSymlink, "/runtime-mnt/alluxio/a/alluxio-fuse"
		b.files[podA] = l
		r, err := b.engine.Check(t.Context(), v)
		if c := r.After.Case; err != nil || r.Verdict() != healer.NotJudged || len(c.MountPoints) > 0 || len(c.Unjudged) != 1 || !strings.Contains(c.Unjudged[0].Why, "symbolic link") {
			t.Errorf("%v, %s: %+v", err, r.Verdict(), c)
		}
		l.VolData = nil // then nothing says that a driver made the link
		b.files[podA] = l
		mustBe(t, b, v, healer.KindInvalid, "symbolic link")
	}
}

// Where the path is not what a check is asked of, or lies in a mount that the caller calls the staged one, it would be judged.
func TestSymbolicLinkBesideWhatIsChecked(t *testing.T) {
	l := directory(volID)
	l.Kind, l.Link = facts.KindSymlink, "/runtime-mnt/alluxio/a/alluxio-fuse"
	b := newFixture(t)
	b.files[podB] = l
	mustBe(t, b, healer.Volume{ID: volID, Path: podA, StagingPath: podB}, healer.KindInvalid, "staging_target_path")
	b = newFixture(t)
	b.unmount(podA)
	b.mount("/k/pods", facts.Dev{Minor: 77})
	b.files[podA] = l
	mustBe(t, b, healer.Volume{ID: volID, Path: podA, StagingPath: "/k/pods"}, healer.KindInvalid, "symbolic link")
}
