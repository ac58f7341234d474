package engine

import (
	"cmp"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

var known = facts.Identity{FilesystemUUID: "uuid", Serial: "serial", WWID: "wwid", DMUUID: "dm", Size: 100}

func TestDiffers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(recorded, now *facts.Identity)
		want   string
	}{
		"the same":            {func(_, _ *facts.Identity) {}, ""},
		"grown":               {func(_, now *facts.Identity) { now.Size = 200 }, ""},
		"shrunk":              {func(_, now *facts.Identity) { now.Size = 99 }, "99 bytes"},
		"no size now":         {func(_, now *facts.Identity) { now.Size = 0 }, "0 bytes"},
		"another UUID":        {func(_, now *facts.Identity) { now.FilesystemUUID = "x" }, "filesystem UUID"},
		"another serial":      {func(_, now *facts.Identity) { now.Serial = "x" }, "serial number"},
		"no serial any more":  {func(_, now *facts.Identity) { now.Serial = "" }, "no serial number can be read, recorded was \"serial\""},
		"an xfs shut down":    {func(_, now *facts.Identity) { now.FilesystemUUID = "" }, "when it is staged anew (docs/eviction.md)"},
		"another WWID":        {func(_, now *facts.Identity) { now.WWID = "x" }, "WWID"},
		"another partition":   {func(_, now *facts.Identity) { now.Partition = "2" }, "partition"},
		"another mapping":     {func(_, now *facts.Identity) { now.DMUUID = "x" }, "device-mapper UUID"},
		"more is known now":   {func(recorded, _ *facts.Identity) { recorded.Serial, recorded.WWID = "", "" }, ""},
		"nothing is recorded": {func(recorded, _ *facts.Identity) { *recorded = facts.Identity{} }, ""},
	} {
		recorded, now := known, known
		tc.change(&recorded, &now)
		if got := healer.Differs(recorded, now); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := healer.Differs(known, facts.Identity{}); strings.Contains(got, "staged anew") {
		t.Errorf("a disk that is gone: %q", got)
	}
}

func TestProveIdentityOfADevice(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*healer.Case, *healer.Superblock)
		want   string
	}{
		"all of it":             {func(*healer.Case, *healer.Superblock) {}, ""},
		"never healthy":         {func(c *healer.Case, _ *healer.Superblock) { c.Record = nil }, "never seen healthy"},
		"unknown filesystem":    {func(_ *healer.Case, sb *healer.Superblock) { sb.Dev.Minor++ }, "nothing is known"},
		"another boot":          {func(c *healer.Case, _ *healer.Superblock) { c.BootID = "boot-2" }, ""},
		"another disk":          {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.Serial = "x" }, "serial number"},
		"the disk is gone":      {func(_ *healer.Case, sb *healer.Superblock) { *sb.Device = facts.BlockDevice{Missing: true} }, "no filesystem UUID can be read"},
		"nameless, this boot":   {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); sb.Kind = facts.KindBlock }, ""},
		"nameless filesystem":   {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb) }, "no serial number"},
		"nameless, other boot":  {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); c.BootID = "boot-2" }, "no serial number"},
		"nameless, number used": {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); sb.Device.DiskSeq++ }, "no serial number"},
		"nameless, no sequence": {func(c *healer.Case, sb *healer.Superblock) {
			nameless(c, sb)
			c.Record.DiskSeq, sb.Device.DiskSeq = 0, 0
		}, "no serial number"},
		"a filesystem UUID alone": {func(c *healer.Case, sb *healer.Superblock) { uuidAlone(c, sb) }, "which a clone shares"},
		"a filesystem UUID, and kubelet names another volume": {func(c *healer.Case, sb *healer.Superblock) {
			uuidAlone(c, sb)
			c.MountPoints = []healer.MountPoint{{Role: healer.RoleStaging, Inspect: facts.PathInfo{VolData: &facts.VolData{VolumeHandle: "other"}}}}
		}, "which a clone shares"},
		"a filesystem UUID, and kubelet names the volume": {func(c *healer.Case, sb *healer.Superblock) {
			uuidAlone(c, sb)
			c.MountPoints = []healer.MountPoint{{Role: healer.RoleStaging, Inspect: facts.PathInfo{VolData: &facts.VolData{}}}}
		}, ""},
	} {
		c := healer.Case{BootID: "boot-1", Record: &healer.Record{BootID: "boot-1", Identity: known, DiskSeq: 5}}
		sb := healer.Superblock{Dev: disk, Device: &facts.BlockDevice{Identity: known, DiskSeq: 5}}
		tc.change(&c, &sb)
		c.Superblocks = map[facts.Dev]healer.Superblock{sb.Dev: sb}
		expectProof(t, name, proveIdentity(c, disk), tc.want)
	}
}

// nameless takes away all that identifies the device but its size.
func nameless(c *healer.Case, sb *healer.Superblock) {
	c.Record.Identity, sb.Device.Identity = facts.Identity{Size: 100}, facts.Identity{Size: 100}
}

// uuidAlone leaves the device's filesystem UUID and size, of another boot.
func uuidAlone(c *healer.Case, sb *healer.Superblock) {
	id := facts.Identity{FilesystemUUID: "uuid", Size: 100}
	c.Record.Identity, sb.Device.Identity, c.BootID = id, id, "boot-2"
}

func TestSameDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*healer.Case, *healer.Superblock)
		want   bool
	}{
		"all of it":                  {func(*healer.Case, *healer.Superblock) {}, true},
		"of another size":            {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.Size = 1 }, true},
		"no record":                  {func(c *healer.Case, _ *healer.Superblock) { c.Record = nil }, false},
		"no device":                  {func(_ *healer.Case, sb *healer.Superblock) { sb.Device = nil }, false},
		"another serial":             {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.Serial = "x" }, false},
		"another filesystem":         {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.FilesystemUUID = "x" }, false},
		"no UUID told":               {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.FilesystemUUID = "" }, true},
		"another sequence":           {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.DiskSeq++ }, true},
		"another boot":               {func(c *healer.Case, _ *healer.Superblock) { c.BootID = "boot-2" }, true},
		"nameless":                   {nameless, true},
		"nameless, of another size":  {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); sb.Device.Identity.Size = 1 }, true},
		"nameless, another sequence": {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); sb.Device.DiskSeq++ }, false},
		"nameless, no sequence": {func(c *healer.Case, sb *healer.Superblock) {
			nameless(c, sb)
			c.Record.DiskSeq, sb.Device.DiskSeq = 0, 0
		}, false},
		"nameless, other boot":          {func(c *healer.Case, sb *healer.Superblock) { nameless(c, sb); c.BootID = "boot-2" }, false},
		"the same sequence, another ID": {func(_ *healer.Case, sb *healer.Superblock) { sb.Device.Identity.WWID = "x" }, false},
	} {
		c := healer.Case{BootID: "boot-1", Record: &healer.Record{BootID: "boot-1", Identity: known, DiskSeq: 5}}
		sb := healer.Superblock{Dev: disk, Device: &facts.BlockDevice{Identity: known, DiskSeq: 5}}
		tc.change(&c, &sb)
		before := c.Record
		if got := healer.SameDisk(c, sb); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
		if before != nil && before.Identity.Size != 100 {
			t.Errorf("%s: the record was changed", name)
		}
	}
}

func expectProof(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

// deviceless is a superblock on no device.
var deviceless = facts.Dev{Minor: 60}

// anew mounts what is staged once more.
func anew(c *healer.Case) { c.MountPoints[0].Stack[0].ID++ }

var identitiesWithoutADevice = map[string]struct {
	change func(*healer.Case, *healer.Superblock)
	want   string
}{
	"the very mount":               {func(*healer.Case, *healer.Superblock) {}, ""},
	"no staged mount":              {func(c *healer.Case, _ *healer.Superblock) { c.MountPoints = nil }, "only the staged mount"},
	"an empty staging mount point": {func(c *healer.Case, _ *healer.Superblock) { c.MountPoints[0].Stack = nil }, "only the staged mount"},
	"another filesystem":           {func(c *healer.Case, _ *healer.Superblock) { c.MountPoints[0].Stack[0].Dev.Minor++ }, "only the staged mount"},
	"anew, named by kubelet":       {func(c *healer.Case, _ *healer.Superblock) { anew(c) }, ""},
	"another boot":                 {func(c *healer.Case, _ *healer.Superblock) { c.BootID = "boot-2" }, ""},
	"no mount id": {func(c *healer.Case, _ *healer.Superblock) {
		c.Record.MountPoints[0].MountID = 0
		c.MountPoints[0].Stack[0].ID = 0
	}, ""},
	"anew, another type":   {func(c *healer.Case, sb *healer.Superblock) { anew(c); sb.FSType = "nfs" }, "type or source"},
	"anew, another source": {func(c *healer.Case, sb *healer.Superblock) { anew(c); sb.Source = "srv:/b" }, "type or source"},
	"anew, another source than that of its number (Lustre)": {func(c *healer.Case, _ *healer.Superblock) { anew(c); c.MountPoints[0].Stack[0].Source = "srv:/b" }, "type or source"},
	"anew, from the server that its own record names": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		c.MountPoints[0].Role, c.Record.MountPoints[0].Role = healer.RoleTarget, healer.RoleTarget
		c.Record.MountPoints[0].Source, sb.Source = "srv2:/a", "srv2:/a"
	}, ""},
	"anew, from the server of another pod": {func(c *healer.Case, _ *healer.Superblock) { anew(c); c.Record.MountPoints[0].Source = "srv2:/a" }, "type or source"},
	"anew, no vol_data.json":               {func(c *healer.Case, _ *healer.Superblock) { anew(c); c.MountPoints[0].Inspect.VolData = nil }, "no vol_data.json"},
	"anew, its root is stale": {func(c *healer.Case, _ *healer.Superblock) {
		anew(c)
		c.MountPoints[0].Own.Errno = syscall.ESTALE
	}, "its own root is stale"},
	"anew, another handle": {func(c *healer.Case, _ *healer.Superblock) { anew(c); c.Volume.ID = "other" }, "no vol_data.json"},
	"anew, another driver": {func(c *healer.Case, _ *healer.Superblock) { anew(c); c.Driver = "other" }, "no vol_data.json"},
	"anew, tmpfs":          {func(c *healer.Case, sb *healer.Superblock) { anew(c); source(c, sb, "tmpfs", "data") }, "names nothing"},
	"anew, no source":      {func(c *healer.Case, sb *healer.Superblock) { anew(c); source(c, sb, "fuse.x", "") }, "names nothing"},
	"anew, source none":    {func(c *healer.Case, sb *healer.Superblock) { anew(c); source(c, sb, "fuse.x", "none") }, "names nothing"},
	"anew, FUSE at kubelet's staging path": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		source(c, sb, "fuse.x", "")
		at(c, layout.Staging)
	}, ""},
	"anew, FUSE at kubelet's pod path": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		source(c, sb, "fuse.x", "fuse.x")
		at(c, layout.Pod)
	}, ""},
	"anew, FUSE at kubelet's path, other": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		at(c, layout.Pod)
		source(c, sb, "fuse.x", "none")
		sb.Source = ""
	}, "type or source"},
	"anew, FUSE at kubelet's path, no file": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		at(c, layout.Staging)
		source(c, sb, "fuse.x", "")
		c.MountPoints[0].Inspect.VolData = nil
	}, "no vol_data.json"},
	"anew, FUSE at a subPath": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		source(c, sb, "fuse.x", "")
		at(c, layout.Subpath)
	}, "names nothing"},
	"anew, tmpfs at kubelet's path": {func(c *healer.Case, sb *healer.Superblock) {
		anew(c)
		source(c, sb, "tmpfs", "tmpfs")
		at(c, layout.Staging)
	}, "names nothing"},
	"published, nothing staged in the record": {func(c *healer.Case, _ *healer.Superblock) {
		c.MountPoints[0].Role, c.Record.MountPoints[0].Role = healer.RoleTarget, healer.RoleTarget
	}, ""},
	"published, and staged in the record": {func(c *healer.Case, _ *healer.Superblock) { c.MountPoints[0].Role = healer.RoleTarget }, "only the staged mount"},
	"in a container": {func(c *healer.Case, _ *healer.Superblock) {
		c.MountPoints[0].Role, c.Record.MountPoints[0].Role = healer.RoleContainer, healer.RoleContainer
	}, "only the staged mount"},
	"staged, not the first mount point": {func(c *healer.Case, _ *healer.Superblock) {
		c.MountPoints = append([]healer.MountPoint{{Role: healer.RoleTarget, Path: podA, Stack: []facts.Mount{{ID: 9, Dev: deviceless}}}}, c.MountPoints...)
	}, ""},
	"anew, source the type": {func(c *healer.Case, sb *healer.Superblock) { anew(c); source(c, sb, "fuse.x", "fuse.x") }, "names nothing"},
}

func TestProveIdentityWithoutADevice(t *testing.T) {
	for name, tc := range identitiesWithoutADevice {
		c := healer.Case{
			Volume: healer.Volume{ID: volID}, Driver: driver, BootID: "boot-1",
			MountPoints: []healer.MountPoint{{Role: healer.RoleStaging, Path: staging, Stack: []facts.Mount{{ID: 7, Dev: deviceless}}, Inspect: directory(volID)}},
			Record: &healer.Record{
				BootID: "boot-1", FSType: "nfs4", Source: "srv:/a",
				MountPoints: []healer.MountPointRecord{{Role: healer.RoleStaging, Path: staging, Dev: deviceless, MountID: 7}},
			},
		}
		sb := healer.Superblock{Dev: deviceless, FSType: "nfs4", Source: "srv:/a"}
		tc.change(&c, &sb)
		c.Superblocks = map[facts.Dev]healer.Superblock{deviceless: sb}
		for _, p := range c.MountPoints {
			for i := range p.Stack {
				p.Stack[i].Source = cmp.Or(p.Stack[i].Source, sb.Source)
			}
		}
		expectProof(t, name, proveIdentity(c, deviceless), tc.want)
	}
}

// A step that brings a superblock that does not exist yet has no identity to compare: whose
// the mount points are has to be known from more than the caller.
func TestProveVolume(t *testing.T) {
	staged := healer.MountPoint{Role: healer.RoleStaging, Path: staging, Proven: true}
	named := healer.MountPoint{Role: healer.RoleTarget, Path: podA, Named: true}
	bare := healer.MountPoint{Role: healer.RoleStaging, Path: "/elsewhere", Named: true}
	covered := bare
	covered.Stack = []facts.Mount{{Dev: disk, Path: bare.Path}}
	for name, tc := range map[string]struct {
		record      *healer.Record
		mountPoints []healer.MountPoint
		want        string
	}{
		"proven":                          {record: &healer.Record{}, mountPoints: []healer.MountPoint{staged}},
		"never healthy":                   {mountPoints: []healer.MountPoint{staged}, want: "never seen healthy"},
		"no mount point":                  {record: &healer.Record{}, want: "only the caller says"},
		"only the caller's":               {record: &healer.Record{}, mountPoints: []healer.MountPoint{named}, want: "only the caller says"},
		"the caller names one more":       {record: &healer.Record{}, mountPoints: []healer.MountPoint{staged, named}, want: "only the caller says"},
		"a staging path with a mount":     {record: &healer.Record{}, mountPoints: []healer.MountPoint{staged, covered}, want: "only the caller says"},
		"a staging path without anything": {record: &healer.Record{}, mountPoints: []healer.MountPoint{staged, bare}},
	} {
		expectProof(t, name, proveVolume(healer.Case{Record: tc.record, MountPoints: tc.mountPoints}), tc.want)
	}
}

// at puts the mount point where kubelet keeps such ones.
func at(c *healer.Case, k layout.Kind) { c.MountPoints[0].Layout.Kind = k }

// source returns record and filesystem the same type and source.
func source(c *healer.Case, sb *healer.Superblock, fsType, source string) {
	sb.FSType, sb.Source = fsType, source
	c.Record.FSType, c.Record.Source = fsType, source
}
