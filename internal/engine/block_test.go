package engine

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	podLink         = "/k/pods/uid-a/volumeDevices/kubernetes.io~csi/pv1"
	blockMountPoint = "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv1/uid-a"
)

// newBlockBench has a raw block volume, published to pod a.
func newBlockBench(t *testing.T) *fixture {
	t.Helper()
	b := newFixture(t)
	devtmpfs := facts.Dev{Minor: 5}
	b.unmount(podA)
	b.unmount(staging)
	b.mount(blockMountPoint, devtmpfs)
	b.change(blockMountPoint, func(m *facts.Mount) { m.FSType, m.Source, m.Root = "devtmpfs", "udev", "/sdb" })
	l := directory(volID)
	l.Kind, l.Rdev = facts.KindBlock, disk
	b.files[blockMountPoint] = l
	b.answers[devtmpfs] = node.Inspection{Kind: facts.KindBlock, ProbeFacts: facts.ProbeFacts{Rdev: disk}, Answer: facts.Answer{Asked: true}}
	b.files[podLink] = facts.PathInfo{Kind: facts.KindSymlink, PathFacts: facts.PathFacts{Link: blockMountPoint}, VolData: l.VolData}
	return b
}

func TestBlockVolume(t *testing.T) {
	for _, path := range []string{blockMountPoint, podLink} {
		b := newBlockBench(t)
		r := b.heal(healer.Volume{ID: volID, Path: path})
		c := b.last()
		if r.Verdict() != healer.Healthy || !c.Block || len(c.MountPoints) != 1 || c.MountPoints[0].Path != blockMountPoint ||
			!c.MountPoints[0].Named || c.MountPoints[0].PodUID != "uid-a" || c.Volume.Path != blockMountPoint {
			t.Errorf("%s: %s, %+v", path, r.Verdict(), c)
		}
		sb := c.Superblocks[c.MountPoints[0].Dev()]
		if sb.Device == nil || sb.Device.Identity.Serial != "serial-1" {
			t.Errorf("%s: %+v", path, sb)
		}
	}
}

func TestBlockVolumeWithStaging(t *testing.T) {
	b := newBlockBench(t)
	const path = "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1"
	b.files[path] = directory(volID)
	b.heal(healer.Volume{ID: volID, Path: podLink, StagingPath: path})
	if got := mountPointsOf(b); len(got) != 2 || got[0] != blockMountPoint || got[1] != path {
		t.Errorf("%q", got)
	}
}

// ceph-csi stages the node of a raw block volume below the path that it is given. Nobody names that to the loop.
func TestStagedBlockVolumeIsFound(t *testing.T) {
	for _, staged := range []string{"/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1", "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1/vol-1"} {
		b := newBlockBench(t)
		b.mount(staged, facts.Dev{Minor: 5})
		b.change(staged, func(m *facts.Mount) { m.FSType, m.Source, m.Root = "devtmpfs", "udev", "/sdb" })
		b.files[staged] = b.files[blockMountPoint]
		b.mount("/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv2", facts.Dev{Minor: 5})
		b.heal(healer.Volume{ID: volID, Path: blockMountPoint})
		expectMountPoints(t, b, blockMountPoint, staged)
		if r := b.notes.records[volumeKey(driver, volID)]; r.Staged() == nil {
			t.Errorf("%s: not recorded: %+v", staged, r)
		}
		last := b.last()
		if s, _ := last.Staged(); s.Layout.Base != "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1" {
			t.Errorf("%s: the driver would be told %q", staged, s.Layout.Base)
		}
	}
}

// Nothing but the device says of a raw block volume that it is for readers only, and no call of the loop.
func TestBlockVolumeForReadersIsRecorded(t *testing.T) {
	for name, said := range map[string]*healer.Capability{"the loop": nil, "a caller": {Access: healer.AccessBlock, ReadOnly: true}} {
		b := newBlockBench(t)
		d := b.devices[disk]
		d.ReadOnly = true
		b.devices[disk] = d
		b.heal(healer.Volume{ID: volID, Path: blockMountPoint, Capability: said})
		if r := b.notes.records[volumeKey(driver, volID)]; len(r.MountPoints) != 1 || !r.MountPoints[0].ReadOnlySuper {
			t.Errorf("%s: %+v", name, r)
		}
		d.ReadOnly = false
		b.devices[disk] = d
		b.heal(healer.Volume{ID: volID, Path: blockMountPoint})
		if r := b.notes.records[volumeKey(driver, volID)]; r.MountPoints[0].ReadOnlySuper {
			t.Errorf("%s: unprotected since: %+v", name, r)
		}
	}
}

// What was writable for the pod before is not taken for one for readers only with the next pod.
func TestBlockVolumeProtectedForTheNextPod(t *testing.T) {
	for name, attached := range map[string]uint64{"the same disk": 0, "attached once more": 1} {
		b := newBlockBench(t)
		b.heal(healer.Volume{ID: volID, Path: blockMountPoint})
		next := strings.Replace(blockMountPoint, "uid-a", "uid-b", 1)
		b.mount(next, facts.Dev{Minor: 5})
		b.change(next, func(m *facts.Mount) { m.FSType, m.Source, m.Root = "devtmpfs", "udev", "/sdb" })
		b.files[next] = b.files[blockMountPoint]
		b.unmount(blockMountPoint)
		delete(b.files, blockMountPoint)
		d := b.devices[disk]
		d.ReadOnly, d.DiskSeq = true, d.DiskSeq+attached
		b.devices[disk] = d
		b.fall(next, healer.ReadOnlyFilesystem)
		b.heal(healer.Volume{ID: volID, Path: next})
		r := b.record()
		if got := r.MountPoint(next); got == nil || got.ReadOnlySuper != (attached != 0) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestHungBlockVolume(t *testing.T) {
	b := newBlockBench(t)
	b.files[blockMountPoint] = facts.PathInfo{VolData: b.files[blockMountPoint].VolData}
	b.answers[facts.Dev{Minor: 5}] = node.Inspection{ProbeFacts: facts.ProbeFacts{Rdev: disk}, Answer: facts.Answer{Asked: true, TimedOut: true}}
	b.heal(healer.Volume{ID: volID, Path: blockMountPoint})
	c := b.last()
	if sb, known := c.Superblocks[c.MountPoints[0].Dev()]; !known || !sb.Answer.TimedOut || !c.Block || sb.Device == nil || sb.Device.Dev != disk {
		t.Errorf("%+v", c)
	}
}

func TestOnlyKubeletsLinkIsFollowed(t *testing.T) {
	for name, tc := range map[string]struct{ path, link string }{
		"another pod's":    {podLink, "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv1/uid-b"},
		"another volume's": {podLink, "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv2/uid-a"},
		"a device":         {podLink, "/dev/sdb"},
		"relative":         {podLink, "../../../../plugins/kubernetes.io/csi/volumeDevices/publish/pv1/uid-a"},
		"dots":             {podLink, "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv1/../pv1/uid-a"},
		"empty":            {podLink, ""},
		"from elsewhere":   {podA, blockMountPoint},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBlockBench(t)
			b.files[tc.path] = facts.PathInfo{Kind: facts.KindSymlink, PathFacts: facts.PathFacts{Link: tc.link}}
			mustBe(t, b, healer.Volume{ID: volID, Path: tc.path}, healer.KindInvalid, "volume_path")
		})
	}
	t.Run("to a link", func(t *testing.T) {
		b := newBlockBench(t)
		b.unmount(blockMountPoint)
		b.files[blockMountPoint] = facts.PathInfo{Kind: facts.KindSymlink, PathFacts: facts.PathFacts{Link: "/dev/sdb"}}
		mustBe(t, b, healer.Volume{ID: volID, Path: podLink}, healer.KindInvalid, "volume_path")
	})
	t.Run("to nothing", func(t *testing.T) {
		b := newBlockBench(t)
		b.unmount(blockMountPoint)
		delete(b.files, blockMountPoint)
		mustBe(t, b, healer.Volume{ID: volID, Path: podLink}, healer.KindNotFound, "volume_path")
	})
}

// TopoLVM published a raw block volume as a device node of its own until 2024, Huawei's driver once as a symbolic
// link to it, and neither mounted anything.
func TestBlockVolumeThatIsNotMounted(t *testing.T) {
	for _, v := range []healer.Volume{{ID: volID, Path: podLink}, {ID: volID, Path: blockMountPoint, Unasked: true, Published: []string{blockMountPoint}}} {
		for _, made := range []string{"device node", "symbolic link"} {
			b := newBlockBench(t)
			b.unmount(blockMountPoint)
			if made == "symbolic link" {
				b.files[blockMountPoint] = facts.PathInfo{
					Kind: facts.KindSymlink, PathFacts: facts.PathFacts{Link: "/dev/sdb"}, VolData: b.files[blockMountPoint].VolData,
				}
			}
			r, err := b.engine.Check(t.Context(), v)
			if c := r.After.Case; err != nil || r.Verdict() != healer.NotJudged || len(c.MountPoints) > 0 || len(c.Unjudged) != 1 || !strings.Contains(c.Unjudged[0].Why, made) {
				t.Errorf("%s: %v, %s: %+v", made, err, r.Verdict(), c)
			}
		}
	}
}
