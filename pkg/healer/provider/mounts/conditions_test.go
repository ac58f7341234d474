package mounts

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

func probe(e syscall.Errno) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, Op: "statx", Errno: e} })
}

func block(c *healer.Case) {
	c.Block = true
	c.MountPoints = c.MountPoints[:1]
	c.MountPoints[0].Inspect.Kind, c.MountPoints[0].Inspect.Rdev = facts.KindBlock, disk
	c.MountPoints[0].Stack[0].Dev, c.MountPoints[0].Stack[0].FSType = facts.Dev{Minor: 5}, "devtmpfs"
	c.Record.MountPoints = c.Record.MountPoints[:1]
	superblock(func(sb *facts.Superblock) { sb.Kind = facts.KindBlock })(c)
}

// example is a case and what is found in it: the reason at its mount point, what the
// message names, and a "!" for acute. Nothing is found in a healthy one.
type example struct {
	name  string
	build func() healer.Case
	want  []string
}

var examples = slices.Concat(mountPointExamples, superblockExamples, errorExamples, spaceExamples, deviceExamples, sizeExamples, pathExamples, deniedExamples, replaceExamples)

var mountPointExamples = []example{
	{name: "published bind lost", build: with(lost), want: []string{"NotMounted! target: nothing is mounted"}},
	{name: "published bind lost, no record", build: with(unrecorded, lost), want: []string{"NotMounted! target: nothing is mounted"}},
	{name: "staged mount lost", build: with(stagingLost), want: []string{"StagingNotMounted staging: gone"}},
	{name: "both lost", build: with(lost, stagingLost), want: []string{"NotMounted! target:", "StagingNotMounted staging:"}},
	{
		name:  "twice mounted",
		build: with(func(c *healer.Case) { c.MountPoints[0].Stack = slices.Repeat(c.MountPoints[0].Stack, 3) }),
		want:  []string{"StackedMounts target: 3 mounts"},
	},
	{
		name:  "staged twice",
		build: with(func(c *healer.Case) { c.MountPoints[1].Stack = slices.Repeat(c.MountPoints[1].Stack, 2) }),
		want:  []string{"StackedMounts staging: 2 mounts"},
	},
	{name: "placeholder on top", build: with(placeholderOnTop), want: []string{"StackedMounts! target: interrupted rebind"}},
	{
		name:  "placeholder of another filesystem on top",
		build: with(placeholderOnTop, func(c *healer.Case) { c.MountPoints[0].Stack[1].Dev.Minor++ }),
		want:  []string{"StackedMounts target:", "ReadOnlyFilesystem target:"},
	},
	{
		name:  "two placeholder ones",
		build: with(placeholderAlone, placeholderOnTop),
		want:  []string{"StackedMounts target:", "ReadOnlyFilesystem target:"},
	},
	{name: "placeholder alone", build: with(placeholderAlone), want: []string{"ReadOnlyFilesystem! target: interrupted rebind"}},

	{
		name:  "handle of another",
		build: with(func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.VolumeHandle = "w" }),
		want:  []string{"WrongVolumeMounted staging: vol_data.json"},
	},
	{
		name:  "driver of another",
		build: with(func(c *healer.Case) { c.MountPoints[1].Inspect.VolData.DriverName = "e" }),
		want:  []string{"WrongVolumeMounted staging: vol_data.json"},
	},
	{
		name:  "another filesystem type",
		build: with(superblock(func(sb *facts.Superblock) { sb.FSType = "xfs" })),
		want:  []string{"WrongVolumeMounted target: xfs", "WrongVolumeMounted staging: xfs"},
	},
	{
		name: "another serial",
		build: with(superblock(func(sb *facts.Superblock) {
			sb.Device.Identity.Serial = "x"
		})),
		want: []string{"WrongVolumeMounted target: serial", "WrongVolumeMounted staging: serial"},
	},
	{
		name:  "another directory",
		build: with(func(c *healer.Case) { c.MountPoints[0].Stack[0].Root = "/other" }),
		want:  []string{`WrongVolumeMounted target: "/other"`},
	},
	{
		name: "another export",
		build: with(func(c *healer.Case) {
			superblock(func(sb *facts.Superblock) { sb.FSType, sb.Source, sb.Device = "nfs4", "srv:/b", nil })(c)
			c.Record.FSType, c.Record.Source = "nfs4", "srv:/a"
		}),
		want: []string{"WrongVolumeMounted target: source", "WrongVolumeMounted staging: source"},
	},

	{name: "daemon gone", build: with(probe(syscall.ENOTCONN)), want: []string{"Disconnected target: ENOTCONN"}},
	{name: "connection aborted", build: with(probe(syscall.ECONNABORTED)), want: []string{"Disconnected target: ECONNABORTED"}},
	{name: "stale", build: with(probe(syscall.ESTALE)), want: []string{"StaleFileHandle target: ESTALE"}},
	{name: "refused", build: with(probe(syscall.EACCES)), want: []string{"PermissionDenied target: EACCES"}},
	{name: "I/O error", build: with(probe(syscall.EIO)), want: []string{"IOError target: EIO"}},
	{name: "damaged", build: with(probe(syscall.EUCLEAN)), want: []string{"IOError target: structure needs cleaning"}},
	{name: "no such device", build: with(probe(syscall.ENXIO)), want: []string{"DeviceMissing target: ENXIO"}},
	{
		name:  "no such device, and none expected",
		build: with(probe(syscall.ENXIO), superblock(func(sb *facts.Superblock) { sb.Device = nil })),
		want:  []string{"IOError target: ENXIO"},
	},
	{
		name:  "device gone",
		build: with(superblock(func(sb *facts.Superblock) { sb.Device = &facts.BlockDevice{Dev: disk, Missing: true} })),
		want:  []string{"DeviceMissing target: 8:16"},
	},
	{
		name:  "shut down",
		build: with(superblock(func(sb *facts.Superblock) { sb.Shutdown = true })),
		want:  []string{"FilesystemShutdown target: ext4"},
	},
	{
		name:  "shut down is the first evidence",
		build: with(probe(syscall.EIO), superblock(func(sb *facts.Superblock) { sb.Shutdown, sb.ReadOnly = true, true })),
		want:  []string{"FilesystemShutdown target:"},
	},
	{
		name: "silent",
		build: with(superblock(func(sb *facts.Superblock) {
			sb.Answer = facts.Answer{Asked: true, TimedOut: true, Elapsed: 5 * time.Second}
			sb.Device = &facts.BlockDevice{Dev: disk}
		})),
		want: []string{"NotResponding target: 5s"},
	},
	{
		name:  "not asked",
		build: with(superblock(func(sb *facts.Superblock) { sb.Answer = facts.Answer{} })),
		want:  []string{"NotResponding target: not probed"},
	},
	{
		name:  "nothing known of it",
		build: with(unrecorded, func(c *healer.Case) { c.Superblocks = nil }),
		want:  []string{"NotResponding target:"},
	},

	{
		name:  "read-only filesystem",
		build: with(superblock(func(sb *facts.Superblock) { sb.ReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: is read-only"},
	},
	{
		name:  "read-only after an error",
		build: with(superblock(func(sb *facts.Superblock) { sb.EmergencyReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: emergency_ro"},
	},
	{
		name: "read-only after an error, published read-only",
		build: with(
			superblock(func(sb *facts.Superblock) { sb.EmergencyReadOnly = true }),
			recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }),
			attr(0, facts.AttrReadOnly),
		),
		want: []string{"ReadOnlyFilesystem target: emergency_ro"},
	},
	{
		name:  "mount turned read-only",
		build: with(attr(0, facts.AttrReadOnly|facts.AttrNoExec)),
		want:  []string{"ReadOnlyFilesystem target: recorded was read-write"},
	},

	{
		name: "block: a directory",
		build: with(block, func(c *healer.Case) {
			c.MountPoints[0].Inspect.Kind = facts.KindDirectory
			c.MountPoints[0].Stack[0].Dev = disk
		}),
		want: []string{"NotABlockDevice target: directory"},
	},
	{
		name: "block: a file",
		build: with(block, func(c *healer.Case) {
			c.MountPoints[0].Inspect.Kind = facts.KindFile
			c.MountPoints[0].Stack[0].Dev = disk
		}),
		want: []string{"NotABlockDevice target: regular file"},
	},
	{
		name:  "block: gone",
		build: with(block, superblock(func(sb *facts.Superblock) { sb.Device = &facts.BlockDevice{Dev: disk, Missing: true} })),
		want:  []string{"DeviceMissing target:"},
	},
	{name: "block: unreadable", build: with(block, probe(syscall.EIO)), want: []string{"IOError target:"}},
	{
		name:  "block: lost",
		build: with(block, func(c *healer.Case) { c.MountPoints[0].Stack, c.MountPoints[0].Inspect.Kind = nil, facts.KindFile }),
		want:  []string{"NotMounted! target:"},
	},
}

func TestConditions(t *testing.T) {
	for _, tc := range examples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// expectConditions compares "Reason! mount point: part of the message" with what is found.
func expectConditions(t *testing.T, c healer.Case, want []string) {
	t.Helper()
	f, err := New(idle{t}).Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("mine: %v, %v", f.Mine, err)
	}
	names := map[string]string{published: "target", staged: "staging"}
	ok := len(f.Conditions) == len(want)
	for i, cond := range f.Conditions {
		head := string(cond.Reason)
		if cond.Acute {
			head += "!"
		}
		head += " " + names[cond.MountPoint]
		if i < len(want) {
			wantHead, part, _ := strings.Cut(want[i], ":")
			ok = ok && head == wantHead && strings.Contains(cond.Message, strings.TrimSpace(part))
		}
	}
	if !ok {
		t.Errorf("got %+v\nwant %q", f.Conditions, want)
	}
}

func TestHealthy(t *testing.T) {
	readOnly := superblock(func(sb *facts.Superblock) { sb.ReadOnly = true })
	for name, build := range map[string]func() healer.Case{
		"as recorded":    healthy,
		"never seen":     with(unrecorded),
		"block":          with(block),
		"nothing staged": with(unrecorded, stagingLost),
		"asked at a staging path where nothing ever was": with(unrecorded, stagingLost, func(c *healer.Case) {
			c.MountPoints, c.Volume.Path = c.MountPoints[1:], staged
		}),
		"no staging path": with(func(c *healer.Case) { c.MountPoints = c.MountPoints[:1] }),
		"another boot":    with(func(c *healer.Case) { c.BootID = "next" }),
		"grown":           with(sized(1 << 40)),
		"nothing is known of the device this time": with(superblock(func(sb *facts.Superblock) {
			sb.Device = &facts.BlockDevice{Dev: disk, Identity: facts.Identity{FilesystemUUID: "uuid"}}
		})),
		"no vol_data.json": with(func(c *healer.Case) { c.MountPoints[0].Inspect.VolData, c.MountPoints[1].Inspect.VolData = nil, nil }),
		// An intended ro is healthy, whatever intends it.
		"ro bind over rw staging":     with(recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }), attr(0, facts.AttrReadOnly)),
		"ro bind, never seen":         with(unrecorded, attr(0, facts.AttrReadOnly)),
		"ro filesystem, recorded":     with(readOnly, recorded(0, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }), recorded(1, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true })),
		"ro filesystem, never seen":   with(unrecorded, readOnly, attr(0, facts.AttrReadOnly), attr(1, facts.AttrReadOnly)),
		"ro filesystem, reader only":  with(readOnly, func(c *healer.Case) { c.Volume.Capability = &healer.Capability{ReadOnly: true} }),
		"a type that is always ro":    with(unrecorded, readOnly, superblock(func(sb *facts.Superblock) { sb.FSType = "squashfs" })),
		"recorded like a placeholder": with(recorded(0, func(r *healer.MountPointRecord) { r.Attr = placeholder }), attr(0, placeholder)),
		"made of the staged one by the driver": with(
			recorded(0, func(r *healer.MountPointRecord) { r.Dev = facts.Dev{Minor: 40} }),
			func(c *healer.Case) {
				c.MountPoints[0].Stack[0].Dev = facts.Dev{Minor: 40}
				c.Superblocks[facts.Dev{Minor: 40}] = facts.Superblock{Dev: facts.Dev{Minor: 40}, FSType: "overlay", Answer: facts.Answer{Asked: true}}
			}),
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, build(), nil) })
	}
}

func TestConformance(t *testing.T) {
	h := &scribe{}
	cases := providertest.Cases{Healthy: healthy, Sick: map[string]func() healer.Case{}, Acts: func() int { return h.acted }}
	for _, tc := range examples {
		if len(tc.want) > 0 {
			cases.Sick[tc.name] = tc.build
		}
	}
	providertest.Run(t, New(h), cases)
}

// another publishes a second filesystem, which answers, instead of what is staged.
func another(stagedType, publishedType string) func(*healer.Case) {
	return func(c *healer.Case) {
		dev := facts.Dev{Major: 8, Minor: 32}
		c.MountPoints[0].Stack[0].Dev, c.MountPoints[0].Stack[0].FSType = dev, publishedType
		c.Superblocks[dev] = facts.Superblock{
			Dev: dev, FSType: publishedType, Kind: facts.KindDirectory, Answer: facts.Answer{Asked: true},
			Device: &facts.BlockDevice{Dev: dev, Name: "sdc", Identity: facts.Identity{FilesystemUUID: "another", Serial: "another", Size: 1 << 30}},
		}
		superblock(func(sb *facts.Superblock) { sb.FSType = stagedType })(c)
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
		"ext4, never seen":     {with(unrecorded, another("ext4", "ext4")), wrong},
		"xfs for btrfs":        {with(unrecorded, another("btrfs", "xfs")), wrong},
		"ext3 for ext2":        {with(unrecorded, another("ext2", "ext3")), wrong},
		"ext4, recorded so":    {with(another("ext4", "ext4"), recorded(0, func(r *healer.MountPointRecord) { r.Dev = facts.Dev{Major: 8, Minor: 32} })), wrong},
		"a new pod's":          {with(another("ext4", "ext4"), func(c *healer.Case) { c.MountPoints[0].Want = nil }), wrong},
		"an overlay of it":     {with(unrecorded, another("ext4", "overlay")), nil},
		"a daemon of its own":  {with(unrecorded, another("fuse.x", "fuse.y")), nil},
		"nothing is staged":    {with(unrecorded, another("ext4", "ext4"), stagingLost), nil},
		"the same, never seen": {with(unrecorded), nil},
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}
