package healer

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

var known = host.Identity{FilesystemUUID: "uuid", Serial: "serial", WWID: "wwid", DMUUID: "dm", Size: 100}

func TestDiffers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(recorded, now *host.Identity)
		want   string
	}{
		"the same":            {func(_, _ *host.Identity) {}, ""},
		"grown":               {func(_, now *host.Identity) { now.Size = 200 }, ""},
		"shrunk":              {func(_, now *host.Identity) { now.Size = 99 }, "99 bytes"},
		"no size now":         {func(_, now *host.Identity) { now.Size = 0 }, "0 bytes"},
		"another UUID":        {func(_, now *host.Identity) { now.FilesystemUUID = "x" }, "filesystem UUID"},
		"another serial":      {func(_, now *host.Identity) { now.Serial = "x" }, "serial number"},
		"no serial any more":  {func(_, now *host.Identity) { now.Serial = "" }, "serial number"},
		"another WWID":        {func(_, now *host.Identity) { now.WWID = "x" }, "WWID"},
		"another partition":   {func(_, now *host.Identity) { now.Partition = "2" }, "partition"},
		"another mapping":     {func(_, now *host.Identity) { now.DMUUID = "x" }, "device-mapper UUID"},
		"more is known now":   {func(recorded, _ *host.Identity) { recorded.Serial, recorded.WWID = "", "" }, ""},
		"nothing is recorded": {func(recorded, _ *host.Identity) { *recorded = host.Identity{} }, ""},
	} {
		recorded, now := known, known
		tc.change(&recorded, &now)
		if got := Differs(recorded, now); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestProveIdentityOfADevice(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Case, *host.Superblock)
		want   string
	}{
		"all of it":             {func(*Case, *host.Superblock) {}, ""},
		"never healthy":         {func(c *Case, _ *host.Superblock) { c.Record = nil }, "never seen healthy"},
		"unknown filesystem":    {func(_ *Case, sb *host.Superblock) { sb.Dev.Minor++ }, "nothing is known"},
		"another boot":          {func(c *Case, _ *host.Superblock) { c.BootID = "boot-2" }, ""},
		"another disk":          {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.Serial = "x" }, "serial number"},
		"the disk is gone":      {func(_ *Case, sb *host.Superblock) { *sb.Device = host.BlockDevice{Missing: true} }, "is \"\""},
		"nameless, this boot":   {func(c *Case, sb *host.Superblock) { nameless(c, sb); sb.Kind = host.KindBlock }, ""},
		"nameless filesystem":   {func(c *Case, sb *host.Superblock) { nameless(c, sb) }, "no serial number"},
		"nameless, other boot":  {func(c *Case, sb *host.Superblock) { nameless(c, sb); c.BootID = "boot-2" }, "no serial number"},
		"nameless, number used": {func(c *Case, sb *host.Superblock) { nameless(c, sb); sb.Device.DiskSeq++ }, "no serial number"},
		"nameless, no sequence": {func(c *Case, sb *host.Superblock) { nameless(c, sb); c.Record.DiskSeq, sb.Device.DiskSeq = 0, 0 }, "no serial number"},
	} {
		c := Case{BootID: "boot-1", Record: &Record{BootID: "boot-1", Identity: known, DiskSeq: 5}}
		sb := host.Superblock{Dev: disk, Device: &host.BlockDevice{Identity: known, DiskSeq: 5}}
		tc.change(&c, &sb)
		c.Superblocks = map[host.Dev]host.Superblock{sb.Dev: sb}
		expectProof(t, name, proveIdentity(c, disk), tc.want)
	}
}

// nameless takes away all that identifies the device but its size.
func nameless(c *Case, sb *host.Superblock) {
	c.Record.Identity, sb.Device.Identity = host.Identity{Size: 100}, host.Identity{Size: 100}
}

func TestSameDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Case, *host.Superblock)
		want   bool
	}{
		"all of it":                     {func(*Case, *host.Superblock) {}, true},
		"of another size":               {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.Size = 1 }, true},
		"no record":                     {func(c *Case, _ *host.Superblock) { c.Record = nil }, false},
		"no device":                     {func(_ *Case, sb *host.Superblock) { sb.Device = nil }, false},
		"another serial":                {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.Serial = "x" }, false},
		"another filesystem":            {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.FilesystemUUID = "x" }, false},
		"no UUID told":                  {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.FilesystemUUID = "" }, true},
		"another sequence":              {func(_ *Case, sb *host.Superblock) { sb.Device.DiskSeq++ }, true},
		"another boot":                  {func(c *Case, _ *host.Superblock) { c.BootID = "boot-2" }, true},
		"nameless":                      {nameless, true},
		"nameless, of another size":     {func(c *Case, sb *host.Superblock) { nameless(c, sb); sb.Device.Identity.Size = 1 }, true},
		"nameless, another sequence":    {func(c *Case, sb *host.Superblock) { nameless(c, sb); sb.Device.DiskSeq++ }, false},
		"nameless, no sequence":         {func(c *Case, sb *host.Superblock) { nameless(c, sb); c.Record.DiskSeq, sb.Device.DiskSeq = 0, 0 }, false},
		"nameless, other boot":          {func(c *Case, sb *host.Superblock) { nameless(c, sb); c.BootID = "boot-2" }, false},
		"the same sequence, another ID": {func(_ *Case, sb *host.Superblock) { sb.Device.Identity.WWID = "x" }, false},
	} {
		c := Case{BootID: "boot-1", Record: &Record{BootID: "boot-1", Identity: known, DiskSeq: 5}}
		sb := host.Superblock{Dev: disk, Device: &host.BlockDevice{Identity: known, DiskSeq: 5}}
		tc.change(&c, &sb)
		before := c.Record
		if got := SameDisk(c, sb); got != tc.want {
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

func TestProveIdentityWithoutADevice(t *testing.T) {
	dev := host.Dev{Minor: 60}
	anew := func(c *Case) { c.MountPoints[0].Stack[0].ID++ }
	for name, tc := range map[string]struct {
		change func(*Case, *host.Superblock)
		want   string
	}{
		"the very mount":               {func(*Case, *host.Superblock) {}, ""},
		"no staged mount":              {func(c *Case, _ *host.Superblock) { c.MountPoints = nil }, "only the staged mount"},
		"an empty staging mount point": {func(c *Case, _ *host.Superblock) { c.MountPoints[0].Stack = nil }, "only the staged mount"},
		"another filesystem":           {func(c *Case, _ *host.Superblock) { c.MountPoints[0].Stack[0].Dev.Minor++ }, "only the staged mount"},
		"anew, named by kubelet":       {func(c *Case, _ *host.Superblock) { anew(c) }, ""},
		"another boot":                 {func(c *Case, _ *host.Superblock) { c.BootID = "boot-2" }, ""},
		"no mount id": {func(c *Case, _ *host.Superblock) {
			c.Record.MountPoints[0].MountID = 0
			c.MountPoints[0].Stack[0].ID = 0
		}, ""},
		"anew, another type":                   {func(c *Case, sb *host.Superblock) { anew(c); sb.FSType = "nfs" }, "type or source"},
		"anew, another source":                 {func(c *Case, sb *host.Superblock) { anew(c); sb.Source = "srv:/b" }, "type or source"},
		"anew, no vol_data.json":               {func(c *Case, _ *host.Superblock) { anew(c); c.MountPoints[0].Inspect.VolData = nil }, "no vol_data.json"},
		"anew, another handle":                 {func(c *Case, _ *host.Superblock) { anew(c); c.Volume.ID = "other" }, "no vol_data.json"},
		"anew, another driver":                 {func(c *Case, _ *host.Superblock) { anew(c); c.Driver = "other" }, "no vol_data.json"},
		"anew, tmpfs":                          {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "tmpfs", "data") }, "names nothing"},
		"anew, no source":                      {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", "") }, "names nothing"},
		"anew, source none":                    {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", "none") }, "names nothing"},
		"anew, FUSE at kubelet's staging path": {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", ""); at(c, host.LayoutStaging) }, ""},
		"anew, FUSE at kubelet's pod path":     {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", "fuse.x"); at(c, host.LayoutPod) }, ""},
		"anew, FUSE at kubelet's path, other": {func(c *Case, sb *host.Superblock) {
			anew(c)
			at(c, host.LayoutPod)
			source(c, sb, "fuse.x", "none")
			sb.Source = ""
		}, "type or source"},
		"anew, FUSE at kubelet's path, no file": {func(c *Case, sb *host.Superblock) {
			anew(c)
			at(c, host.LayoutStaging)
			source(c, sb, "fuse.x", "")
			c.MountPoints[0].Inspect.VolData = nil
		}, "no vol_data.json"},
		"anew, FUSE at a subPath": {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", ""); at(c, host.LayoutSubpath) }, "names nothing"},
		"anew, tmpfs at kubelet's path": {func(c *Case, sb *host.Superblock) {
			anew(c)
			source(c, sb, "tmpfs", "tmpfs")
			at(c, host.LayoutStaging)
		}, "names nothing"},
		"published, nothing staged in the record": {func(c *Case, _ *host.Superblock) {
			c.MountPoints[0].Role, c.Record.MountPoints[0].Role = RoleTarget, RoleTarget
		}, ""},
		"published, and staged in the record": {func(c *Case, _ *host.Superblock) { c.MountPoints[0].Role = RoleTarget }, "only the staged mount"},
		"in a container": {func(c *Case, _ *host.Superblock) {
			c.MountPoints[0].Role, c.Record.MountPoints[0].Role = RoleContainer, RoleContainer
		}, "only the staged mount"},
		"staged, not the first mount point": {func(c *Case, _ *host.Superblock) {
			c.MountPoints = append([]MountPoint{{Role: RoleTarget, Path: podA, Stack: []host.Mount{{ID: 9, Dev: dev}}}}, c.MountPoints...)
		}, ""},
		"anew, source the type": {func(c *Case, sb *host.Superblock) { anew(c); source(c, sb, "fuse.x", "fuse.x") }, "names nothing"},
	} {
		c := Case{
			Volume: Volume{ID: volID}, Driver: driver, BootID: "boot-1",
			MountPoints: []MountPoint{{Role: RoleStaging, Path: staging, Stack: []host.Mount{{ID: 7, Dev: dev}}, Inspect: directory(volID)}},
			Record: &Record{
				BootID: "boot-1", FSType: "nfs4", Source: "srv:/a",
				MountPoints: []MountPointRecord{{Role: RoleStaging, Path: staging, Dev: dev, MountID: 7}},
			},
		}
		sb := host.Superblock{Dev: dev, FSType: "nfs4", Source: "srv:/a"}
		tc.change(&c, &sb)
		c.Superblocks = map[host.Dev]host.Superblock{dev: sb}
		expectProof(t, name, proveIdentity(c, dev), tc.want)
	}
}

// at puts the mount point where kubelet keeps such ones.
func at(c *Case, k host.LayoutKind) { c.MountPoints[0].Layout.Kind = k }

// source returns record and filesystem the same type and source.
func source(c *Case, sb *host.Superblock, fsType, source string) {
	sb.FSType, sb.Source = fsType, source
	c.Record.FSType, c.Record.Source = fsType, source
}
