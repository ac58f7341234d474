package mounts

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// hung is a superblock that gave no answer.
func hung(change ...func(*facts.Answer)) cases.Change {
	return superblock(func(sb *healer.Superblock) {
		sb.Answer = facts.Answer{Asked: true, TimedOut: true, Elapsed: 5 * time.Second}
		for _, c := range change {
			c(&sb.Answer)
		}
	})
}

// writing is silence after a read was answered.
func writing(waits ...string) cases.Change {
	return hung(func(a *facts.Answer) { a.Writing, a.Waits = true, waits })
}

// frozen answers reads, and has who writes wait.
var frozen = superblock(func(sb *healer.Superblock) { sb.Answer.Frozen, sb.Answer.Waits = true, []string{"percpu_rwsem_wait"} })

// wrote is an answer to a write.
func wrote(op string, e syscall.Errno, change ...func(*facts.Write)) cases.Change {
	return superblock(func(sb *healer.Superblock) {
		sb.Write = facts.Write{Answer: facts.Answer{Asked: true, Op: op, Errno: e}}
		for _, c := range change {
			c(&sb.Write)
		}
	})
}

func late(times int) cases.Change {
	return superblock(func(sb *healer.Superblock) { sb.Answer.Late, sb.Answer.Elapsed = times, 1234*time.Millisecond })
}

// overlay publishes what a driver made of the staged filesystem.
func overlay(upper *healer.Superblock) cases.Change {
	dev := facts.Dev{Minor: 40}
	return func(c *healer.Case) {
		c.Record.MountPoints[0].Dev, c.MountPoints[0].Stack[0].Dev = dev, dev
		c.Superblocks[dev] = healer.Superblock{Dev: dev, FSType: "overlay", Kind: facts.KindDirectory, Upper: upper, Answer: facts.Answer{Asked: true}}
	}
}

// layers publishes an overlay that is read-only, with these super options.
func layers(options ...string) cases.Change {
	return func(c *healer.Case) {
		overlay(nil)(c)
		m := &c.MountPoints[0].Stack[0]
		m.FSType, m.SuperReadOnly, m.SuperOptions = "overlay", true, options
		sb := c.Superblocks[m.Dev]
		sb.ReadOnly = true
		c.Superblocks[m.Dev] = sb
	}
}

// readOnlyVolume is one that is read-only.
func readOnlyVolume(c *healer.Case) { c.Volume.Capability = &healer.Capability{ReadOnly: true} }

// forReaders has a ReadOnlyMany volume.
func forReaders(c *healer.Case) { c.Volume.ReadersOnly = true }

var superblockExamples = []example{
	{
		name: "for readers, and was writable",
		build: cases.With(
			forReaders, superblock(func(sb *healer.Superblock) { sb.ReadOnly = true }),
			recorded(1, func(r *healer.MountPointRecord) { r.MountID = 77 }), func(c *healer.Case) { c.MountPoints[1].Stack[0].ID = 77 },
		),
		want: []string{"ReadOnlyFilesystem target: is read-only"},
	},
	{
		name:  "for readers, and read-only after an error",
		build: cases.With(forReaders, cases.Unrecorded, superblock(func(sb *healer.Superblock) { sb.EmergencyReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: emergency_ro"},
	},
	{
		name:  "frozen",
		build: cases.With(frozen),
		want:  []string{"Frozen target: reads succeed, and writers wait for a thaw; the kernel waits in percpu_rwsem_wait"},
	},
	{name: "frozen, and the disk fails", build: cases.With(frozen, probe(syscall.EIO)), want: []string{"IOError target"}},
	{
		name:  "an xfs that shut itself down, as its disk fails",
		build: cases.With(probe(syscall.EIO), superblock(func(sb *healer.Superblock) { sb.Opened.Errno = syscall.EIO })),
		want:  []string{"IOError target: statx", "DeviceReadError target: sdb fails as well: read the device: input/output error (EIO)"},
	},
	{
		name:  "an xfs that shut itself down, as its disk has no medium any more",
		build: cases.With(probe(syscall.EIO), superblock(func(sb *healer.Superblock) { sb.Opened.Errno = syscall.ENOMEDIUM })),
		want:  []string{"IOError target: statx", "DeviceMissing target: sdb fails as well: read the device: no medium found (ENOMEDIUM)"},
	},
	{
		name:  "frozen, and full",
		build: cases.With(frozen, left(0, 1)),
		want:  []string{"Frozen target", "OutOfSpace target"},
	},
	{
		name:  "a write hangs elsewhere",
		build: cases.With(writing("jbd2_log_wait_commit")),
		want:  []string{"NotResponding target: a write has no answer within 5s; the kernel waits in jbd2_log_wait_commit"},
	},
	{
		name:  "a write hangs, it is not known where",
		build: cases.With(writing()),
		want:  []string{"NotResponding target: reads succeed, and a write has no answer within 5s"},
	},
	{
		name:  "a read hangs where a frozen write would",
		build: cases.With(hung(func(a *facts.Answer) { a.Waits = []string{"percpu_rwsem_wait"} })),
		want:  []string{"NotResponding target: no answer within 5s; the kernel waits in percpu_rwsem_wait"},
	},

	{name: "late twice", build: cases.With(late(2))},
	{
		name:  "late three times",
		build: cases.With(late(3)),
		want:  []string{"SlowResponse target: late 3 times in a row, now after 1.234s"},
	},
	{name: "late four times", build: cases.With(late(4)), want: []string{"SlowResponse target: 4 times"}},
	{
		name:  "late and sick",
		build: cases.With(late(9), superblock(func(sb *healer.Superblock) { sb.Shutdown = true })),
		want:  []string{"FilesystemShutdown target:"},
	},

	{name: "a write succeeds", build: cases.With(wrote("", 0))},
	{
		name:  "a write fails",
		build: cases.With(wrote("fdatasync", syscall.EIO)),
		want:  []string{"IOError target: fdatasync: input/output error (EIO)"},
	},
	{
		name:  "a write is refused as read-only",
		build: cases.With(wrote("create", syscall.EROFS)),
		want:  []string{"ReadOnlyFilesystem target: EROFS"},
	},
	{
		name:  "a write cannot be tried",
		build: cases.With(wrote("create", syscall.EOPNOTSUPP, func(w *facts.Write) { w.Unable = true })),
	},
	{
		name:  "a write meets a full filesystem",
		build: cases.With(wrote("create", syscall.ENOSPC, func(w *facts.Write) { w.Unable = true })),
	},
	{
		name:  "a write must not be tried",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.Write.Forbidden = "it is not wanted" })),
	},
	{
		name:  "the read's errno is the first evidence",
		build: cases.With(probe(syscall.ENOTCONN), wrote("write", syscall.EIO)),
		want:  []string{"Disconnected target: statx"},
	},

	{name: "overlay", build: cases.With(overlay(nil))},
	{name: "overlay without an upper", build: cases.With(layers("ro", "lowerdir=/a:/b"))},
	{name: "overlay without an upper, layer by layer", build: cases.With(layers("ro", "lowerdir+=/a", "lowerdir+=/b"))},
	{
		name: "overlay that turned read-only", build: cases.With(layers("ro", "lowerdir=/a", "upperdir=/u", "workdir=/w")),
		want: []string{"ReadOnlyFilesystem target:"},
	},
	{
		name:  "subvolume that was set read-only",
		build: cases.With(wrote("mkdir", syscall.EROFS), superblock(func(sb *healer.Superblock) { sb.FSType = "btrfs" }), func(c *healer.Case) { c.Record.FSType = "btrfs" }),
		want:  []string{"ReadOnlyFilesystem target: its subvolume refused a write"},
	},
	{name: "overlay over a healthy upper", build: cases.With(overlay(&healer.Superblock{FSType: "xfs"}))},
	{
		name:  "overlay over a dead upper",
		build: cases.With(overlay(&healer.Superblock{FSType: "xfs", Shutdown: true})),
		want:  []string{"FilesystemShutdown target: the xfs that the overlay writes to"},
	},
	{
		name:  "overlay over a read-only upper",
		build: cases.With(overlay(&healer.Superblock{FSType: "xfs", ReadOnly: true})),
		want:  []string{"ReadOnlyFilesystem target: the overlay writes to"},
	},
	{
		name:  "overlay over an upper that turned read-only",
		build: cases.With(overlay(&healer.Superblock{FSType: "ext4", EmergencyReadOnly: true})),
		want:  []string{"ReadOnlyFilesystem target: the overlay writes to"},
	},
	{
		name:  "overlay over a read-only upper, meant so",
		build: cases.With(overlay(&healer.Superblock{ReadOnly: true}), readOnlyVolume),
	},
}

// counted is what an ext4 has counted.
func counted(n uint64, last time.Time) cases.Change {
	return superblock(func(sb *healer.Superblock) {
		sb.Errors = &facts.FilesystemErrors{Count: n, LastTime: last, LastFunction: "ext4_find_entry"}
	})
}

// baseline is what was counted when the volume was last healthy.
func baseline(c *healer.Case) { c.Record.FilesystemErrors = 7 }

func booted(c *healer.Case) { c.BootTime = boot }

var (
	boot  = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	after = boot.Add(time.Hour)
)

var errorExamples = []example{
	{name: "no errors", build: cases.With(counted(0, time.Time{}))},
	{
		name:  "the first error",
		build: cases.With(counted(1, after)),
		want:  []string{"FilesystemErrors target: ext4 counted 1 errors, 0 when it was last healthy; the last at 2026-01-02T04:04:05Z in ext4_find_entry"},
	},
	{name: "as many as recorded", build: cases.With(counted(7, after), baseline)},
	{
		name:  "one more than recorded",
		build: cases.With(counted(8, after), baseline),
		want:  []string{"FilesystemErrors target: 8 errors, 7 when"},
	},
	{
		name:  "checked since, and errors again",
		build: cases.With(counted(2, after), baseline),
		want:  []string{"FilesystemErrors target: 2 errors"},
	},
	{name: "checked since", build: cases.With(counted(0, time.Time{}), baseline)},
	{
		name:  "more, at an unknown time",
		build: cases.With(counted(8, time.Time{}), baseline),
		want:  []string{"FilesystemErrors target: 8 errors"},
	},
	{
		name:  "no record, errors of this boot",
		build: cases.With(booted, counted(1, after), cases.Unrecorded),
		want:  []string{"FilesystemErrors target: 0 when"},
	},
	{
		name:  "no record, in the second of the boot",
		build: cases.With(booted, counted(1, boot.Truncate(time.Second)), cases.Unrecorded),
		want:  []string{"FilesystemErrors target:"},
	},
	{
		name:  "no record, errors of an earlier boot",
		build: cases.With(booted, counted(1, boot.Add(-time.Minute)), cases.Unrecorded),
	},
	{name: "no record, errors of an unknown time", build: cases.With(booted, counted(1, time.Time{}), cases.Unrecorded)},

	{
		name:  "errors, and a write succeeds",
		build: cases.With(counted(1, after), wrote("", 0)),
		want:  []string{"FilesystemErrors target: a write still succeeds"},
	},
	{
		name:  "errors, and a write fails",
		build: cases.With(counted(1, after), wrote("write", syscall.EIO)),
		want:  []string{"IOError target: write"},
	},
	{
		name:  "errors, and it turned read-only",
		build: cases.With(counted(1, after), wrote("create", syscall.EROFS)),
		want:  []string{"ReadOnlyFilesystem target: EROFS", "FilesystemErrors target: 1 errors"},
	},
	{
		name:  "errors, no write tried",
		build: cases.With(counted(1, after), superblock(func(sb *healer.Superblock) { sb.Write.Forbidden = "it is not wanted" })),
		want:  []string{"FilesystemErrors target: no write was tried: it is not wanted"},
	},
}

// left is what is left of a filesystem with 1000 blocks and 100 inodes that had
// some of both when it was recorded.
func left(blocks, inodes uint64) cases.Change {
	return func(c *healer.Case) {
		superblock(func(sb *healer.Superblock) {
			sb.Space = facts.Space{Blocks: 1000, Available: blocks, Files: 100, FreeFiles: inodes}
		})(c)
		had(true, true)(c)
	}
}

// had is what was left when the volume was recorded.
func had(blocks, inodes bool) cases.Change {
	return func(c *healer.Case) {
		for i := range c.Record.MountPoints {
			c.Record.MountPoints[i].HadBlocks, c.Record.MountPoints[i].HadInodes = blocks, inodes
		}
	}
}

var spaceExamples = []example{
	{name: "a block and an inode left", build: cases.With(left(1, 1))},
	{name: "no block left", build: cases.With(left(0, 1)), want: []string{"OutOfSpace target: no block of 1000"}},
	{name: "no inode left", build: cases.With(left(1, 0)), want: []string{"OutOfInodes target: no inode of 100"}},
	{name: "nothing left", build: cases.With(left(0, 0)), want: []string{"OutOfSpace target:", "OutOfInodes target:"}},
	{name: "nothing left, as ever", build: cases.With(left(0, 0), had(false, false))},
	{
		name:  "nothing left, and inodes never were",
		build: cases.With(left(0, 0), had(true, false)),
		want:  []string{"OutOfSpace target:"},
	},
	{
		name:  "nothing left, and blocks never were",
		build: cases.With(left(0, 0), had(false, true)),
		want:  []string{"OutOfInodes target:"},
	},
	{name: "nothing left, never seen", build: cases.With(left(0, 0), cases.Unrecorded)},
	{
		name:  "nothing left, at a new mount point",
		build: cases.With(left(0, 0), func(c *healer.Case) { c.MountPoints[0].Want = nil }),
		want:  []string{"OutOfSpace target:", "OutOfInodes target:"},
	},
	{name: "it does not tell", build: cases.With(superblock(func(sb *healer.Superblock) { sb.Space = facts.Space{} }))},
	{
		name:  "it does not count inodes",
		build: cases.With(superblock(func(sb *healer.Superblock) { sb.Space = facts.Space{Blocks: 1000, Available: 1} })),
	},
	{name: "full, for readers only", build: cases.With(left(0, 0), readOnlyVolume)},
	{
		name: "full, and published read-only everywhere",
		build: cases.With(
			left(0, 0), attr(0, facts.AttrReadOnly), attr(1, facts.AttrReadOnly),
			recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }), recorded(1, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }),
		),
	},
	{
		name:  "full, and read-only",
		build: cases.With(left(0, 0), superblock(func(sb *healer.Superblock) { sb.ReadOnly = true })),
		want:  []string{"ReadOnlyFilesystem target: is read-only"},
	},
	{
		name:  "full, and shut down",
		build: cases.With(left(0, 0), superblock(func(sb *healer.Superblock) { sb.Shutdown = true })),
		want:  []string{"FilesystemShutdown target:"},
	},
}

// A volume that still works is not called inaccessible, nor the other way round.
func TestStatusOfAReason(t *testing.T) {
	statuses := map[healer.Reason]healer.Status{
		healer.Frozen: healer.Degraded, healer.NotResponding: healer.Inaccessible, healer.FilesystemShutdown: healer.Inaccessible,
		healer.IOError: healer.Inaccessible, healer.DeviceReadError: healer.Inaccessible, healer.DeviceSizeChanged: healer.Inaccessible,
		healer.PermissionDenied: healer.Inaccessible, healer.WrongVolumeMounted: healer.Inaccessible,
		healer.SlowResponse: healer.Degraded, healer.OutOfSpace: healer.Degraded, healer.OutOfInodes: healer.Degraded,
		healer.FilesystemErrors: healer.Degraded, healer.DeviceReadOnly: healer.Degraded, healer.BackingFileGone: healer.Degraded,
		healer.ReadOnlyFilesystem: healer.Degraded,
	}
	seen := map[healer.Reason]bool{}
	for _, tc := range examples {
		f, err := New(idle{t}).Examine(tc.build())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Conditions {
			seen[c.Reason] = true
			if want := statuses[c.Reason]; want != "" && c.Status != want {
				t.Errorf("%s: %s is %s", tc.name, c.Reason, c.Status)
			}
		}
	}
	for r := range statuses {
		if !seen[r] {
			t.Errorf("no example of %s", r)
		}
	}
}

// Where the next step of a person may lose data, the advice says what saves it, and does
// not send the person to delete the pod or to check the filesystem.
func TestAdviceThatSavesData(t *testing.T) {
	for name, tc := range map[string]struct {
		build func() healer.Case
		saves string
	}{
		"the backing file has no name": {build: cases.With(device(func(d *facts.BlockDevice) { d.BackingFileGone = true })), saves: "copy the data away"},
		"the device has shrunk":        {build: cases.With(sized(1<<30 - 1)), saves: "do not check the filesystem"},
	} {
		f, err := New(idle{t}).Examine(tc.build())
		if err != nil || len(f.Conditions) != 1 || !strings.Contains(f.Conditions[0].Advice, tc.saves) || strings.Contains(f.Conditions[0].Advice, "delete") {
			t.Errorf("%s: %+v, %v", name, f.Conditions, err)
		}
	}
}

// What passes by itself is not sent to a person.
func TestAdviceForWhatMayPass(t *testing.T) {
	for e, want := range map[syscall.Errno]string{syscall.ETIMEDOUT: adviceLater, syscall.EBUSY: adviceLater, syscall.EIO: adviceShutdown} {
		f, err := New(idle{t}).Examine(cases.With(probe(e))())
		if err != nil || len(f.Conditions) != 1 || !strings.Contains(f.Conditions[0].Advice, want) {
			t.Errorf("%v: %+v, %v", e, f.Conditions, err)
		}
	}
}

// A daemon may still have what was written: nobody is told to delete all pods because its server is away.
func TestAdviceForADaemonThatFails(t *testing.T) {
	f, err := New(idle{t}).Examine(cases.With(cases.Outliving, cases.Of(cases.Renewed, cases.Errno(syscall.EIO)))())
	if err != nil || !slices.ContainsFunc(f.Conditions, func(c healer.Condition) bool { return c.Reason == healer.IOError && c.Advice == adviceNotResponding }) {
		t.Errorf("%+v, %v", f.Conditions, err)
	}
}

// A directory's filesystem stays mounted without the pods of its volume.
func TestAdviceForADirectoryOfAFilesystem(t *testing.T) {
	directory := func(c *healer.Case) {
		for i := range c.MountPoints {
			c.MountPoints[i].Stack[0].Root, c.Record.MountPoints[i].Root = "/volumes/a", "/volumes/a"
		}
	}
	for want, change := range map[string]cases.Change{adviceShutdown: func(*healer.Case) {}, adviceShared: directory} {
		f, err := New(idle{t}).Examine(cases.With(shut, change)())
		if err != nil || len(f.Conditions) != 1 || f.Conditions[0].Advice != want {
			t.Errorf("want %q: %+v, %v", want, f.Conditions, err)
		}
	}
}
