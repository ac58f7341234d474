package mounts

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// hung is a superblock that gave no answer.
func hung(change ...func(*facts.Answer)) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) {
		sb.Answer = facts.Answer{Asked: true, TimedOut: true, Elapsed: 5 * time.Second}
		for _, c := range change {
			c(&sb.Answer)
		}
	})
}

// writing is silence after a read was answered.
func writing(waits ...string) func(*healer.Case) {
	return hung(func(a *facts.Answer) { a.Writing, a.Waits = true, waits })
}

// frozen answers reads, and has who writes wait.
var frozen = superblock(func(sb *facts.Superblock) { sb.Answer.Frozen, sb.Answer.Waits = true, []string{"percpu_rwsem_wait"} })

// wrote is an answer to a write.
func wrote(op string, e syscall.Errno, change ...func(*facts.Write)) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) {
		sb.Write = facts.Write{Answer: facts.Answer{Asked: true, Op: op, Errno: e}}
		for _, c := range change {
			c(&sb.Write)
		}
	})
}

func late(times int) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) { sb.Answer.Late, sb.Answer.Elapsed = times, 1234*time.Millisecond })
}

// overlay publishes what a driver made of the staged filesystem.
func overlay(upper *facts.Superblock) func(*healer.Case) {
	dev := facts.Dev{Minor: 40}
	return func(c *healer.Case) {
		c.Record.MountPoints[0].Dev, c.MountPoints[0].Stack[0].Dev = dev, dev
		c.Superblocks[dev] = facts.Superblock{Dev: dev, FSType: "overlay", Kind: facts.KindDirectory, Upper: upper, Answer: facts.Answer{Asked: true}}
	}
}

// readOnlyVolume is one that is read-only.
func readOnlyVolume(c *healer.Case) { c.Volume.Capability = &healer.Capability{ReadOnly: true} }

var superblockExamples = []example{
	{
		name:  "frozen",
		build: with(frozen),
		want:  []string{"Frozen target: reads succeed, and writers wait for a thaw; the kernel waits in percpu_rwsem_wait"},
	},
	{name: "frozen, and the disk fails", build: with(frozen, probe(syscall.EIO)), want: []string{"IOError target"}},
	{name: "frozen, and full", build: with(frozen, left(0, 1)), want: []string{"Frozen target", "OutOfSpace target"}},
	{
		name:  "a write hangs elsewhere",
		build: with(writing("jbd2_log_wait_commit")),
		want:  []string{"NotResponding target: a write has no answer within 5s; the kernel waits in jbd2_log_wait_commit"},
	},
	{
		name:  "a write hangs, it is not known where",
		build: with(writing()),
		want:  []string{"NotResponding target: reads succeed, and a write has no answer within 5s"},
	},
	{
		name:  "a read hangs where a frozen write would",
		build: with(hung(func(a *facts.Answer) { a.Waits = []string{"percpu_rwsem_wait"} })),
		want:  []string{"NotResponding target: no answer within 5s; the kernel waits in percpu_rwsem_wait"},
	},

	{name: "late twice", build: with(late(2))},
	{name: "late three times", build: with(late(3)), want: []string{"SlowResponse target: late 3 times in a row, now after 1.234s"}},
	{name: "late four times", build: with(late(4)), want: []string{"SlowResponse target: 4 times"}},
	{
		name:  "late and sick",
		build: with(late(9), superblock(func(sb *facts.Superblock) { sb.Shutdown = true })),
		want:  []string{"FilesystemShutdown target:"},
	},

	{name: "a write succeeds", build: with(wrote("", 0))},
	{
		name:  "a write fails",
		build: with(wrote("fdatasync", syscall.EIO)),
		want:  []string{"IOError target: fdatasync: input/output error (EIO)"},
	},
	{
		name:  "a write is refused as read-only",
		build: with(wrote("create", syscall.EROFS)),
		want:  []string{"ReadOnlyFilesystem target: EROFS"},
	},
	{name: "a write cannot be tried", build: with(wrote("create", syscall.EOPNOTSUPP, func(w *facts.Write) { w.Unable = true }))},
	{name: "a write meets a full filesystem", build: with(wrote("create", syscall.ENOSPC, func(w *facts.Write) { w.Unable = true }))},
	{name: "a write must not be tried", build: with(superblock(func(sb *facts.Superblock) { sb.Write.Forbidden = "it is not wanted" }))},
	{
		name:  "the read's errno is the first evidence",
		build: with(probe(syscall.ENOTCONN), wrote("write", syscall.EIO)),
		want:  []string{"Disconnected target: statx"},
	},

	{name: "overlay", build: with(overlay(nil))},
	{name: "overlay over a healthy upper", build: with(overlay(&facts.Superblock{FSType: "xfs"}))},
	{
		name:  "overlay over a dead upper",
		build: with(overlay(&facts.Superblock{FSType: "xfs", Shutdown: true})),
		want:  []string{"FilesystemShutdown target: the xfs that the overlay writes to"},
	},
	{
		name:  "overlay over a read-only upper",
		build: with(overlay(&facts.Superblock{FSType: "xfs", ReadOnly: true})),
		want:  []string{"ReadOnlyFilesystem target: the overlay writes to"},
	},
	{
		name:  "overlay over an upper that turned read-only",
		build: with(overlay(&facts.Superblock{FSType: "ext4", EmergencyReadOnly: true})),
		want:  []string{"ReadOnlyFilesystem target: the overlay writes to"},
	},
	{name: "overlay over a read-only upper, meant so", build: with(overlay(&facts.Superblock{ReadOnly: true}), readOnlyVolume)},
}

// counted is what an ext4 has counted.
func counted(n uint64, last time.Time) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) {
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
	{name: "no errors", build: with(counted(0, time.Time{}))},
	{
		name:  "the first error",
		build: with(counted(1, after)),
		want:  []string{"FilesystemErrors target: ext4 counted 1 errors, 0 when it was last healthy; the last at 2026-01-02T04:04:05Z in ext4_find_entry"},
	},
	{name: "as many as recorded", build: with(counted(7, after), baseline)},
	{
		name:  "one more than recorded",
		build: with(counted(8, after), baseline),
		want:  []string{"FilesystemErrors target: 8 errors, 7 when"},
	},
	{
		name:  "checked since, and errors again",
		build: with(counted(2, after), baseline),
		want:  []string{"FilesystemErrors target: 2 errors"},
	},
	{name: "checked since", build: with(counted(0, time.Time{}), baseline)},
	{
		name:  "more, at an unknown time",
		build: with(counted(8, time.Time{}), baseline),
		want:  []string{"FilesystemErrors target: 8 errors"},
	},
	{
		name:  "no record, errors of this boot",
		build: with(booted, counted(1, after), unrecorded),
		want:  []string{"FilesystemErrors target: 0 when"},
	},
	{
		name:  "no record, in the second of the boot",
		build: with(booted, counted(1, boot.Truncate(time.Second)), unrecorded),
		want:  []string{"FilesystemErrors target:"},
	},
	{name: "no record, errors of an earlier boot", build: with(booted, counted(1, boot.Add(-time.Minute)), unrecorded)},
	{name: "no record, errors of an unknown time", build: with(booted, counted(1, time.Time{}), unrecorded)},

	{
		name:  "errors, and a write succeeds",
		build: with(counted(1, after), wrote("", 0)),
		want:  []string{"FilesystemErrors target: a write still succeeds"},
	},
	{
		name:  "errors, and a write fails",
		build: with(counted(1, after), wrote("write", syscall.EIO)),
		want:  []string{"IOError target: write"},
	},
	{
		name:  "errors, and it turned read-only",
		build: with(counted(1, after), wrote("create", syscall.EROFS)),
		want:  []string{"ReadOnlyFilesystem target: EROFS", "FilesystemErrors target: 1 errors"},
	},
	{
		name:  "errors, no write tried",
		build: with(counted(1, after), superblock(func(sb *facts.Superblock) { sb.Write.Forbidden = "it is not wanted" })),
		want:  []string{"FilesystemErrors target: no write was tried: it is not wanted"},
	},
}

// left is what is left of a filesystem with 1000 blocks and 100 inodes that had
// some of both when it was recorded.
func left(blocks, inodes uint64) func(*healer.Case) {
	return func(c *healer.Case) {
		superblock(func(sb *facts.Superblock) {
			sb.Space = facts.Space{Blocks: 1000, Available: blocks, Files: 100, FreeFiles: inodes}
		})(c)
		had(true, true)(c)
	}
}

// had is what was left when the volume was recorded.
func had(blocks, inodes bool) func(*healer.Case) {
	return func(c *healer.Case) {
		for i := range c.Record.MountPoints {
			c.Record.MountPoints[i].HadBlocks, c.Record.MountPoints[i].HadInodes = blocks, inodes
		}
	}
}

var spaceExamples = []example{
	{"a block and an inode left", with(left(1, 1)), nil},
	{"no block left", with(left(0, 1)), []string{"OutOfSpace target: no block of 1000"}},
	{"no inode left", with(left(1, 0)), []string{"OutOfInodes target: no inode of 100"}},
	{"nothing left", with(left(0, 0)), []string{"OutOfSpace target:", "OutOfInodes target:"}},
	{"nothing left, as ever", with(left(0, 0), had(false, false)), nil},
	{"nothing left, and inodes never were", with(left(0, 0), had(true, false)), []string{"OutOfSpace target:"}},
	{"nothing left, and blocks never were", with(left(0, 0), had(false, true)), []string{"OutOfInodes target:"}},
	{"nothing left, never seen", with(left(0, 0), unrecorded), nil},
	{"nothing left, at a new mount point", with(left(0, 0), func(c *healer.Case) { c.MountPoints[0].Want = nil }), []string{"OutOfSpace target:", "OutOfInodes target:"}},
	{"it does not tell", with(superblock(func(sb *facts.Superblock) { sb.Space = facts.Space{} })), nil},
	{"it does not count inodes", with(superblock(func(sb *facts.Superblock) { sb.Space = facts.Space{Blocks: 1000, Available: 1} })), nil},
	{"full, for readers only", with(left(0, 0), readOnlyVolume), nil},
	{"full, and published read-only everywhere", with(
		left(0, 0), attr(0, facts.AttrReadOnly), attr(1, facts.AttrReadOnly),
		recorded(0, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }), recorded(1, func(r *healer.MountPointRecord) { r.Attr = facts.AttrReadOnly }),
	), nil},
	{"full, and read-only", with(left(0, 0), superblock(func(sb *facts.Superblock) { sb.ReadOnly = true })), []string{"ReadOnlyFilesystem target: is read-only"}},
	{"full, and shut down", with(left(0, 0), superblock(func(sb *facts.Superblock) { sb.Shutdown = true })), []string{"FilesystemShutdown target:"}},
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
		"the backing file has no name": {build: with(device(func(d *facts.BlockDevice) { d.BackingFileGone = true })), saves: "copy the data away"},
		"the device has shrunk":        {build: with(sized(1<<30 - 1)), saves: "do not check the filesystem"},
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
		f, err := New(idle{t}).Examine(with(probe(e))())
		if err != nil || len(f.Conditions) != 1 || !strings.Contains(f.Conditions[0].Advice, want) {
			t.Errorf("%v: %+v, %v", e, f.Conditions, err)
		}
	}
}
