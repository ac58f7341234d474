package mounts

import (
	"path"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

func probe(e syscall.Errno) cases.Change {
	return superblock(func(sb *healer.Superblock) { sb.Answer = facts.Answer{Asked: true, Op: "statx", Errno: e} })
}

// TestFilesOfABareTargetAreSavedFirst: no pod is deleted, also where the staged mount is lost, too, and
// no step finds the files.
func TestFilesOfABareTargetAreSavedFirst(t *testing.T) {
	f, err := New(&scribe{}).Examine(cases.With(cases.Lost, cases.StagingLost, writtenInto)())
	if err != nil {
		t.Fatal(err)
	}
	got, want := healer.Diagnosis{Conditions: f.Conditions}.Advice(), healer.FilesInTheWay("").Advice
	if !slices.Equal(got, []string{want}) {
		t.Errorf("advises %q", got)
	}
}

// TestNothingIsRemovedAtAPathOfTheCallersAlone: a directory above a mount of the volume (kubelet's, with
// "/mount" forgotten), or in it, is neither mounted nor empty.
func TestNothingIsRemovedAtAPathOfTheCallersAlone(t *testing.T) {
	named := func(c *healer.Case) {
		p := &c.MountPoints[0]
		p.Path, p.Want, p.Layout = path.Dir(p.Path), nil, layout.Path{}
	}
	f, err := New(&scribe{}).Examine(cases.With(cases.Lost, writtenInto, named)())
	if err != nil {
		t.Fatal(err)
	}
	if got := (healer.Diagnosis{Conditions: f.Conditions}).Advice(); !slices.Equal(got, []string{adviceNamed}) {
		t.Errorf("advises %q", got)
	}
}

// belowStaging has the driver stage in a directory of its own, which now gives errno.
func belowStaging(errno syscall.Errno) cases.Change {
	return func(c *healer.Case) {
		p := &c.MountPoints[1]
		p.Layout = layout.Path{Kind: layout.Staging, Base: path.Dir(p.Path)}
		p.Inspect = facts.PathInfo{Inspected: true, PathFacts: facts.PathFacts{Errno: errno}}
	}
}

func writtenInto(c *healer.Case) { c.MountPoints[0].Inspect.NotEmpty = true }

func block(c *healer.Case) {
	c.Block = true
	c.MountPoints = c.MountPoints[:1]
	c.MountPoints[0].Inspect.Kind, c.MountPoints[0].Inspect.Rdev = facts.KindBlock, cases.Disk
	c.MountPoints[0].Stack[0].Dev, c.MountPoints[0].Stack[0].FSType = facts.Dev{Minor: 5}, "devtmpfs"
	c.Record.MountPoints = c.Record.MountPoints[:1]
	superblock(func(sb *healer.Superblock) { sb.Kind = facts.KindBlock })(c)
}

func boundTwice(c *healer.Case) {
	c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 2)
}

func nodeDeleted(c *healer.Case) { c.MountPoints[0].Stack[0].RootDeleted = true }

// example is a case and what is found in it: the reason at its mount point, what the
// message names, and a "!" for acute. Nothing is found in a healthy one.
type example struct {
	name  string
	build func() healer.Case
	want  []string
}

var examples = slices.Concat(mountPointExamples, superblockExamples, errorExamples, spaceExamples, deviceExamples, sizeExamples, pathExamples, deniedExamples, replaceExamples)

var mountPointExamples = []example{
	{name: "published bind lost", build: cases.With(cases.Lost), want: []string{"NotMounted! target: nothing is mounted"}},
	{
		name:  "published bind lost, no record",
		build: cases.With(cases.Unrecorded, cases.Lost),
		want:  []string{"NotMounted! target: nothing is mounted"},
	},
	{
		name:  "published bind lost, and written into",
		build: cases.With(cases.Lost, writtenInto),
		want:  []string{"NotMounted! target:", "TargetNotEmpty target: node's disk"},
	},
	{name: "staged mount lost", build: cases.With(cases.StagingLost), want: []string{"StagingNotMounted staging: gone"}},
	{name: "a driver's own mount below the staging path taken away, with its directory", build: cases.With(cases.StagingLost, belowStaging(syscall.ENOENT))},
	{name: "such a mount lost", build: cases.With(cases.StagingLost, belowStaging(0)), want: []string{"StagingNotMounted staging: gone"}},
	{
		name:  "both lost",
		build: cases.With(cases.Lost, cases.StagingLost),
		want:  []string{"NotMounted! target:", "StagingNotMounted staging:"},
	},
	{
		name:  "twice mounted",
		build: cases.With(func(c *healer.Case) { c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 3) }),
		want:  []string{"StackedMounts target: 3 mounts"},
	},
	{
		name:  "staged twice",
		build: cases.With(func(c *healer.Case) { c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2) }),
		want:  []string{"StackedMounts staging: 2 mounts"},
	},
	{name: "a snapshot bound over its filesystem, as ceph-csi stages one", build: cases.With(snapshotStaged)},
	{
		name: "the same snapshot bound twice",
		build: cases.With(snapshotStaged, func(c *healer.Case) {
			p := &c.MountPoints[1]
			p.Stack = slices.Insert(p.Stack, 0, p.Stack[0])
		}),
		want: []string{"StackedMounts staging: 3 mounts"},
	},
	{
		name:  "a snapshot bound over another filesystem",
		build: cases.With(snapshotStaged, func(c *healer.Case) { c.MountPoints[1].Stack[1].Dev.Minor++ }),
		want:  []string{"StackedMounts staging:"},
	},
	{
		name:  "placeholder on top",
		build: cases.With(placeholderOnTop),
		want:  []string{"StackedMounts! target: interrupted rebind"},
	},
	{
		name:  "placeholder of another filesystem on top",
		build: cases.With(placeholderOnTop, func(c *healer.Case) { c.MountPoints[0].Stack[1].Dev.Minor++ }),
		want:  []string{"StackedMounts target:", "ReadOnlyFilesystem target:"},
	},
	{
		name:  "two placeholder ones",
		build: cases.With(placeholderAlone, placeholderOnTop),
		want:  []string{"StackedMounts target:", "ReadOnlyFilesystem target:"},
	},
	{
		name:  "placeholder alone",
		build: cases.With(placeholderAlone),
		want:  []string{"ReadOnlyFilesystem! target: interrupted rebind"},
	},

	{
		name:  "handle of another",
		build: cases.With(func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }),
		want:  []string{"WrongVolumeMounted staging: vol_data.json"},
	},
	{
		name:  "driver of another",
		build: cases.With(func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.DriverName = "e" }),
		want:  []string{"WrongVolumeMounted staging: vol_data.json"},
	},
	{
		name:  "another filesystem type",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.FSType = "xfs" })),
		want:  []string{"WrongVolumeMounted target: xfs", "WrongVolumeMounted staging: xfs"},
	},
	{
		name: "another serial",
		build: cases.With(superblock(func(sb *healer.Superblock) {
			sb.Device.Identity.Serial = "x"
		})),
		want: []string{"WrongVolumeMounted target: serial", "WrongVolumeMounted staging: serial"},
	},
	{name: "a directory without a name, on a share that answers", build: cases.With(restagedShare, nodeDeleted), want: []string{"StaleFileHandle target: deleted, or a lookup of it failed"}},
	{name: "a directory without a name, of a daemon that has ended", build: cases.With(cases.Outliving, nodeDeleted), want: []string{"Disconnected! target:"}},
	{name: "raw block, the disk came back under its number", build: cases.With(block, nodeDeleted)},
	{
		name:  "raw block, another disk has its number",
		build: cases.With(block, nodeDeleted, device(func(d *facts.BlockDevice) { d.Identity.Serial = "x" })),
		want:  []string{"StaleFileHandle target: deleted", "WrongVolumeMounted target: serial"},
	},
	{
		name: "raw block, another disk has its number, and nothing tells them apart",
		build: cases.With(block, nodeDeleted, func(c *healer.Case) {
			c.Record.Identity.Serial, c.Record.DiskSeq = "", 1
			device(func(d *facts.BlockDevice) { d.Identity.Serial, d.DiskSeq = "", 2 })(c)
		}),
		want: []string{"StaleFileHandle target: deleted"},
	},
	{
		name:  "another directory",
		build: cases.With(func(c *healer.Case) { c.MountPoints[0].Stack[0].Root = "/other" }),
		want:  []string{`WrongVolumeMounted target: "/other"`},
	},
	{
		name:  "other monitors",
		build: cases.With(otherMonitors),
		want:  []string{"WrongVolumeMounted target: source", "WrongVolumeMounted staging: source"},
	},
	{name: "other monitors, staged for another pod", build: cases.With(otherMonitors, func(c *healer.Case) {
		c.MountPoints[0].Want, c.Record.MountPoints = nil, c.Record.MountPoints[1:]
	})},
	{
		name: "other monitors, and nothing says whether the recorded pod has gone",
		build: cases.With(otherMonitors, func(c *healer.Case) {
			c.Unjudged = []healer.Unjudged{{MountPoint: c.MountPoints[0], Why: "the API does not answer"}}
			c.MountPoints = c.MountPoints[1:]
		}),
		want: []string{"WrongVolumeMounted staging: source"},
	},
	{name: "other monitors, in another boot", build: cases.With(otherMonitors, func(c *healer.Case) { c.Record.BootID = "before" })},
	{
		name: "other monitors for another pod, and kubelet's file does not name the volume",
		build: cases.With(otherMonitors, func(c *healer.Case) {
			c.MountPoints[0].Want, c.MountPoints[1].Inspect.VolData = nil, nil
		}),
		want: []string{"WrongVolumeMounted staging: source"},
	},

	{name: "an SMB share staged anew", build: cases.With(restagedShare)},
	{
		name:  "another SMB share staged",
		build: cases.With(restagedShare, func(c *healer.Case) { c.MountPoints[1].Stack[0].Source = "//srv/other" }),
		want:  []string{"WrongVolumeMounted target: it is not what is staged", "WrongVolumeMounted staging: source"},
	},

	{name: "nothing is staged, and two pods' mounts name different servers", build: cases.With(twoServers)},
	{
		name: "nothing is staged, and an earlier build recorded two pods' mounts that name different servers",
		build: cases.With(twoServers, func(c *healer.Case) {
			c.Record.MountPoints[0].Source, c.Record.MountPoints[1].Source = "", ""
		}),
	},
	{
		name:  "nothing is staged, and two pods' mounts of one superblock name different servers (CephFS)",
		build: cases.With(twoServers, oneNumber),
	},
	{
		name:  "one of them is mounted anew",
		build: cases.With(twoServers, oneNumber, func(c *healer.Case) { c.Record.MountPoints[1].MountID-- }),
	},
	{
		name: "another directory of a Lustre, whose mounts all have one number",
		build: cases.With(twoServers, oneNumber, func(c *healer.Case) {
			c.Record.MountPoints[1].MountID--
			c.Record.MountPoints[1].Source, c.MountPoints[1].Stack[0].Source = c.Record.Source, c.Record.Source+"/other"
		}),
		want: []string{"WrongVolumeMounted target: source"},
	},
	{
		name: "nothing is staged, and a pod's mount names another server than it did",
		build: cases.With(twoServers, func(c *healer.Case) {
			c.Record.MountPoints[1].Source, c.Record.MountPoints[1].MountID = c.Record.Source, 1
		}),
		want: []string{"WrongVolumeMounted target: source"},
	},

	{name: "nothing is staged, and two pods' mounts have different versions of NFS", build: cases.With(twoServers, secondIs("nfs4"))},
	{name: "another version of NFS, in another boot", build: cases.With(twoServers, secondIs("nfs4"), bootedSince)},
	{
		name:  "a mount of another version of NFS came",
		build: cases.With(twoServers, secondIs("nfs4"), func(c *healer.Case) { c.Record.MountPoints[1].MountID-- }),
		want:  []string{"WrongVolumeMounted target: filesystem type is nfs4"},
	},
	{
		name:  "a FUSE filesystem instead of NFS, in another boot",
		build: cases.With(twoServers, secondIs("fuse.x"), bootedSince),
		want:  []string{"WrongVolumeMounted target: filesystem type is fuse.x"},
	},

	{name: "daemon gone", build: cases.With(probe(syscall.ENOTCONN)), want: []string{"Disconnected target: ENOTCONN"}},
	{
		name:  "connection aborted",
		build: cases.With(probe(syscall.ECONNABORTED)),
		want:  []string{"Disconnected target: ECONNABORTED"},
	},
	{name: "stale", build: cases.With(probe(syscall.ESTALE)), want: []string{"StaleFileHandle target: ESTALE"}},
	{name: "refused", build: cases.With(probe(syscall.EACCES)), want: []string{"PermissionDenied target: EACCES"}},
	{name: "I/O error", build: cases.With(probe(syscall.EIO)), want: []string{"IOError target: EIO"}},
	{
		name:  "damaged",
		build: cases.With(probe(syscall.EUCLEAN)),
		want:  []string{"IOError target: structure needs cleaning"},
	},
	{name: "no such device", build: cases.With(probe(syscall.ENXIO)), want: []string{"DeviceMissing target: ENXIO"}},
	{
		name:  "no such device, and none expected",
		build: cases.With(probe(syscall.ENXIO), superblock(func(sb *healer.Superblock) { sb.Device = nil })),
		want:  []string{"IOError target: ENXIO"},
	},
	{
		name:  "device gone",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.Device = &facts.BlockDevice{Dev: cases.Disk, Missing: true} })),
		want:  []string{"DeviceMissing target: 8:16"},
	},
	{
		name:  "shut down",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.Shutdown = true })),
		want:  []string{"FilesystemShutdown target: ext4"},
	},
	{
		name:  "shut down is the first evidence",
		build: cases.With(probe(syscall.EIO), superblock(func(sb *healer.Superblock) { sb.Shutdown, sb.ReadOnly = true, true })),
		want:  []string{"FilesystemShutdown target:"},
	},
	{
		name: "silent",
		build: cases.With(superblock(func(sb *healer.Superblock) {
			sb.Answer = facts.Answer{Asked: true, TimedOut: true, Elapsed: 5 * time.Second}
			sb.Device = &facts.BlockDevice{Dev: cases.Disk}
		})),
		want: []string{"NotResponding target: 5s"},
	},
	{
		name:  "not asked",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.Answer = facts.Answer{} })),
		want:  []string{"NotResponding target: not probed"},
	},
	{
		name:  "nothing known of it",
		build: cases.With(cases.Unrecorded, func(c *healer.Case) { c.Superblocks = nil }),
		want:  []string{"NotResponding target:"},
	},

	{
		name:  "read-only filesystem",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.ReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: is read-only"},
	},
	{
		name:  "read-only after an error",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.EmergencyReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: emergency_ro"},
	},
	{
		name: "read-only after an error, published read-only",
		build: cases.With(
			superblock(func(sb *healer.Superblock) { sb.EmergencyReadOnly = true }),
			recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }),
			attr(0, facts.AttrReadOnly),
		),
		want: []string{"ReadOnlyFilesystem target: emergency_ro"},
	},
	{
		name:  "mount turned read-only",
		build: cases.With(attr(0, facts.AttrReadOnly|facts.AttrNoExec)),
		want:  []string{"ReadOnlyFilesystem target: recorded was read-write"},
	},

	{name: "block: bound twice", build: cases.With(block, boundTwice)},
	{
		name:  "block: bound over another device",
		build: cases.With(block, boundTwice, func(c *healer.Case) { c.MountPoints[0].Stack[1].Root = "/sdc" }),
		want:  []string{"StackedMounts target: 2 mounts"},
	},
	{
		name:  "block: bound over the deleted node of the same name",
		build: cases.With(block, boundTwice, func(c *healer.Case) { c.MountPoints[0].Stack[1].RootDeleted = true }),
		want:  []string{"StackedMounts target: 2 mounts"},
	},
	{
		name:  "block: bound over a placeholder",
		build: cases.With(block, boundTwice, func(c *healer.Case) { c.MountPoints[0].Stack[1].Attr = cases.Placeholder }),
		want:  []string{"StackedMounts target: 2 mounts"},
	},
	{
		name:  "block: a placeholder on top",
		build: cases.With(block, boundTwice, attr(0, cases.Placeholder), recorded(0, func(r *healer.MountPointRecord) { r.Attr = cases.Placeholder })),
		want:  []string{"StackedMounts! target: interrupted rebind"},
	},
	{
		name: "block: a directory",
		build: cases.With(block, func(c *healer.Case) {
			c.MountPoints[0].Inspect.Kind = facts.KindDirectory
			c.MountPoints[0].Stack[0].Dev = cases.Disk
		}),
		want: []string{"NotABlockDevice target: directory"},
	},
	{
		name: "block: a file",
		build: cases.With(block, func(c *healer.Case) {
			c.MountPoints[0].Inspect.Kind = facts.KindFile
			c.MountPoints[0].Stack[0].Dev = cases.Disk
		}),
		want: []string{"NotABlockDevice target: regular file"},
	},
	{
		name:  "block: gone",
		build: cases.With(block, superblock(func(sb *healer.Superblock) { sb.Device = &facts.BlockDevice{Dev: cases.Disk, Missing: true} })),
		want:  []string{"DeviceMissing target:"},
	},
	{name: "block: unreadable", build: cases.With(block, probe(syscall.EIO)), want: []string{"IOError target:"}},
	{
		name:  "block: lost",
		build: cases.With(block, func(c *healer.Case) { c.MountPoints[0].Stack, c.MountPoints[0].Inspect.Kind = nil, facts.KindFile }),
		want:  []string{"NotMounted! target:"},
	},
}

func TestConditions(t *testing.T) {
	for _, tc := range examples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// expectConditions expects "Reason! role: part of the message" of the provider.
func expectConditions(t *testing.T, c healer.Case, want []string) {
	t.Helper()
	f, err := New(idle{t}).Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("mine: %v, %v", f.Mine, err)
	}
	cases.WantConditions(t, c, f.Conditions, want)
}

func TestHealthy(t *testing.T) {
	readOnly := superblock(func(sb *healer.Superblock) { sb.ReadOnly = true })
	for name, build := range map[string]func() healer.Case{
		"as recorded":    cases.Healthy,
		"never seen":     cases.With(cases.Unrecorded),
		"block":          cases.With(block),
		"nothing staged": cases.With(cases.Unrecorded, cases.StagingLost),
		"asked at a staging path where nothing ever was": cases.With(cases.Unrecorded, cases.StagingLost, func(c *healer.Case) {
			c.MountPoints, c.Volume.Path = c.MountPoints[1:], cases.Staged
		}),
		"no staging path": cases.With(func(c *healer.Case) { c.MountPoints = c.MountPoints[:1] }),
		"another boot":    cases.With(func(c *healer.Case) { c.BootID = "next" }),
		"grown":           cases.With(sized(1 << 40)),
		"nothing is known of the device this time": cases.With(superblock(func(sb *healer.Superblock) {
			sb.Device = &facts.BlockDevice{Dev: cases.Disk, Identity: facts.Identity{FilesystemUUID: "uuid"}}
		})),
		"no vol_data.json": cases.With(func(c *healer.Case) { c.MountPoints[0].Inspect.VolData, c.MountPoints[1].Inspect.VolData = nil, nil }),
		// An intended ro is healthy, whatever intends it.
		"ro bind over rw staging":    cases.With(recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }), attr(0, facts.AttrReadOnly)),
		"ro bind, never seen":        cases.With(cases.Unrecorded, attr(0, facts.AttrReadOnly)),
		"ro filesystem, recorded":    cases.With(readOnly, recorded(0, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }), recorded(1, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true })),
		"ro filesystem, never seen":  cases.With(cases.Unrecorded, readOnly, attr(0, facts.AttrReadOnly), attr(1, facts.AttrReadOnly)),
		"ro filesystem, reader only": cases.With(readOnly, func(c *healer.Case) { c.Volume.Capability = &healer.Capability{ReadOnly: true} }),
		"ro filesystem, for readers": cases.With(cases.Unrecorded, readOnly, forReaders),
		"ro filesystem, staged for readers after it was for a writer": cases.With(
			readOnly, forReaders, recorded(0, func(r *healer.MountPointRecord) { r.MountID = 76 }), recorded(1, func(r *healer.MountPointRecord) { r.MountID = 77 }),
		),
		"a type that is always ro":    cases.With(cases.Unrecorded, readOnly, superblock(func(sb *healer.Superblock) { sb.FSType = "squashfs" })),
		"recorded like a placeholder": cases.With(recorded(0, func(r *healer.MountPointRecord) { r.Attr = cases.Placeholder }), attr(0, cases.Placeholder)),
		"made of the staged one by the driver": cases.With(
			recorded(0, func(r *healer.MountPointRecord) { r.Dev = facts.Dev{Minor: 40} }),
			func(c *healer.Case) {
				c.MountPoints[0].Stack[0].Dev = facts.Dev{Minor: 40}
				c.Superblocks[facts.Dev{Minor: 40}] = healer.Superblock{Dev: facts.Dev{Minor: 40}, FSType: "overlay", Answer: facts.Answer{Asked: true}}
			}),
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, build(), nil) })
	}
}

func TestConformance(t *testing.T) {
	h := &scribe{}
	suite := providertest.Cases{Healthy: cases.Healthy, Sick: map[string]func() healer.Case{}, Acts: func() int { return h.acted }}
	for _, tc := range examples {
		if len(tc.want) > 0 {
			suite.Sick[tc.name] = tc.build
		}
	}
	providertest.Run(t, New(h), suite)
}

// another publishes a second filesystem, which answers, instead of what is staged.
func another(stagedType, publishedType string) cases.Change {
	return func(c *healer.Case) {
		dev := facts.Dev{Major: 8, Minor: 32}
		c.MountPoints[0].Stack[0].Dev, c.MountPoints[0].Stack[0].FSType = dev, publishedType
		c.Superblocks[dev] = healer.Superblock{
			Dev: dev, FSType: publishedType, Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true},
			Device: &facts.BlockDevice{Dev: dev, Name: "sdc", Identity: facts.Identity{FilesystemUUID: "another", Serial: "another", Size: 1 << 30}},
		}
		superblock(func(sb *healer.Superblock) { sb.FSType = stagedType })(c)
		c.MountPoints[1].Stack[0].FSType = stagedType
		if c.Record != nil {
			c.Record.FSType = stagedType
		}
	}
}

// What a driver publishes of a filesystem that it stages on a disk is that filesystem.
// A record of anything else is that of a mistake.
func TestPublishedIsWhatIsStaged(t *testing.T) {
	wrong := []string{"WrongVolumeMounted target: it is not what is staged"}
	for name, tc := range map[string]struct {
		build func() healer.Case
		want  []string
	}{
		"ext4, never seen": {build: cases.With(cases.Unrecorded, another("ext4", "ext4")), want: wrong},
		"xfs for btrfs":    {build: cases.With(cases.Unrecorded, another("btrfs", "xfs")), want: wrong},
		"ext3 for ext2":    {build: cases.With(cases.Unrecorded, another("ext2", "ext3")), want: wrong},
		"ext4, recorded so": {
			build: cases.With(another("ext4", "ext4"), recorded(0, func(r *healer.MountPointRecord) { r.Dev = facts.Dev{Major: 8, Minor: 32} })),
			want:  wrong,
		},
		"a new pod's": {
			build: cases.With(another("ext4", "ext4"), func(c *healer.Case) { c.MountPoints[0].Want = nil }),
			want:  wrong,
		},
		"an overlay of it":     {build: cases.With(cases.Unrecorded, another("ext4", "overlay"))},
		"a daemon of its own":  {build: cases.With(cases.Unrecorded, another("fuse.x", "fuse.y"))},
		"nothing is staged":    {build: cases.With(cases.Unrecorded, another("ext4", "ext4"), cases.StagingLost)},
		"the same, never seen": {build: cases.With(cases.Unrecorded)},
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// restagedShare is an SMB share that answers at the target, and that the driver has staged anew.
func restagedShare(c *healer.Case) {
	c.Record.FSType, c.Record.Source, c.Record.Identity = "cifs", "//srv/share", facts.Identity{}
	for i, dev := range []facts.Dev{cases.Export, cases.Renewed} {
		m := &c.MountPoints[i].Stack[0]
		m.Dev, m.FSType, m.Source, m.Root = dev, "cifs", "//srv/share", "/"
		c.Record.MountPoints[i].Dev, c.Record.MountPoints[i].Root = cases.Export, "/"
		c.Superblocks[dev] = healer.Superblock{Dev: dev, FSType: "cifs", Source: m.Source, Kind: facts.KindDirectory, Answer: cases.Answered(0)}
	}
}

// TestFailedLookupCostsNoPod: the kernel has dropped the name of a directory that is still there.
func TestFailedLookupCostsNoPod(t *testing.T) {
	c := cases.With(restagedShare, nodeDeleted)()
	for _, cond := range judgeMountPoint(c, c.MountPoints[0]) {
		if cond.Disables() || cond.Acute || cond.Advice != adviceLookUp {
			t.Errorf("%+v", cond)
		}
	}
}

// snapshotStaged has a snapshot bound over the filesystem that it is in.
func snapshotStaged(c *healer.Case) {
	p := &c.MountPoints[1]
	p.Stack = append([]facts.Mount{p.Stack[0]}, p.Stack...)
	p.Stack[0].Root, c.Record.MountPoints[1].Root = "/.snap/s", "/.snap/s"
}

const secondPod = "/k/pods/b/mount"

// twoServers is a Lustre volume that two pods have published, the second one since its server's address changed.
func twoServers(c *healer.Case) {
	const before, now = "10.0.0.1@tcp:/fs", "10.0.0.2@tcp:/fs"
	c.Record.FSType, c.Record.Source, c.Record.Identity = "lustre", before, facts.Identity{}
	c.Superblocks = map[facts.Dev]healer.Superblock{}
	for i, source := range []string{before, now} {
		p, r := &c.MountPoints[i], &c.Record.MountPoints[i]
		m := facts.Mount{ID: uint64(20 + i), Dev: facts.Dev{Minor: uint32(70 + i)}, Root: "/", Path: p.Path, FSType: "lustre", Source: source}
		if i == 1 {
			p.PodUID, p.Role, p.Path, m.Path = "b", healer.RoleTarget, secondPod, secondPod
		}
		p.Stack = []facts.Mount{m}
		*r = healer.MountPointRecord{Role: healer.RoleTarget, Path: m.Path, Root: "/", Dev: m.Dev, MountID: m.ID, Source: source}
		p.Want = r
		c.Superblocks[m.Dev] = healer.Superblock{Dev: m.Dev, FSType: m.FSType, Source: source, Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true}}
	}
}

// oneNumber gives both mounts of twoServers the number of the first one's superblock.
func oneNumber(c *healer.Case) {
	first := c.MountPoints[0].Dev()
	delete(c.Superblocks, c.MountPoints[1].Dev())
	c.MountPoints[1].Stack[0].Dev, c.Record.MountPoints[1].Dev = first, first
}

// secondIs has the volume of twoServers recorded as NFS, which its first pod has, and gives the second pod's mount another type.
func secondIs(second string) cases.Change {
	return func(c *healer.Case) {
		c.Record.FSType = "nfs"
		for i, fsType := range []string{"nfs", second} {
			m := &c.MountPoints[i].Stack[0]
			sb := c.Superblocks[m.Dev]
			m.FSType, sb.FSType = fsType, fsType
			c.Superblocks[m.Dev] = sb
		}
	}
}

func bootedSince(c *healer.Case) { c.Record.BootID = "before" }

// otherMonitors has a CephFS mounted that names other monitors than the recorded mount did.
func otherMonitors(c *healer.Case) {
	superblock(func(sb *healer.Superblock) { sb.FSType, sb.Source, sb.Device = "ceph", "10.0.0.2:6789:/volumes/v", nil })(c)
	c.Record.FSType, c.Record.Source = "ceph", "10.0.0.1:6789:/volumes/v"
}
