package mounts

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// device changes what sysfs knows of the device.
func device(change func(*facts.BlockDevice)) cases.Change {
	return superblock(func(sb *healer.Superblock) { change(sb.Device) })
}

// shut is an ext4 that shut itself down.
var shut = superblock(func(sb *healer.Superblock) { sb.Shutdown = true })

// nextPod has the record name another pod's mount point, and a disk with the sequence number 7.
func nextPod(diskSeq uint64) cases.Change {
	return func(c *healer.Case) {
		c.MountPoints[0].Want = nil
		c.Record.DiskSeq = 7
		device(func(d *facts.BlockDevice) { d.DiskSeq = diskSeq })(c)
	}
}

// reading is what a read of the device itself gave.
func reading(e syscall.Errno) cases.Change {
	return superblock(func(sb *healer.Superblock) { sb.Answer = facts.Answer{Asked: true, Op: facts.OpReadDevice, Errno: e} })
}

func mapping(m facts.Mapping) cases.Change {
	m.Name = "vg-lv"
	return device(func(d *facts.BlockDevice) { d.Mapping = &m })
}

var deviceExamples = []example{
	{
		name:  "unreadable device",
		build: cases.With(reading(syscall.EIO)),
		want:  []string{"DeviceReadError target: read the device: input/output error (EIO)"},
	},
	{
		name:  "unreadable sector",
		build: cases.With(reading(syscall.ENODATA)),
		want:  []string{"DeviceReadError target: ENODATA"},
	},
	{
		name:  "device without a medium",
		build: cases.With(reading(syscall.ENOMEDIUM)),
		want:  []string{"DeviceMissing target: ENOMEDIUM"},
	},
	{
		name:  "device gone while it was read",
		build: cases.With(reading(syscall.ENXIO)),
		want:  []string{"DeviceMissing target: ENXIO"},
	},
	{name: "unreadable filesystem", build: cases.With(probe(syscall.EIO)), want: []string{"IOError target: statx"}},
	{
		name:  "block: unreadable device",
		build: cases.With(block, reading(syscall.EIO)),
		want:  []string{"DeviceReadError target:"},
	},

	{
		name:  "write-protected",
		build: cases.With(device(func(d *facts.BlockDevice) { d.ReadOnly = true })),
		want:  []string{"DeviceReadOnly target: sdb is write-protected"},
	},
	{
		name:  "write-protected, for readers only",
		build: cases.With(device(func(d *facts.BlockDevice) { d.ReadOnly = true }), readOnlyVolume),
	},
	{
		name: "write-protected, recorded read-only",
		build: cases.With(
			device(func(d *facts.BlockDevice) { d.ReadOnly = true }),
			recorded(0, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }), recorded(1, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }),
		),
	},
	{
		name:  "block: write-protected",
		build: cases.With(block, device(func(d *facts.BlockDevice) { d.ReadOnly = true })),
		want:  []string{"DeviceReadOnly target:"},
	},
	{
		name:  "block: write-protected since it was first seen, as a driver does it for readers only",
		build: cases.With(block, device(func(d *facts.BlockDevice) { d.ReadOnly = true }), cases.Unrecorded),
	},

	{
		name:  "block: write-protected since another pod of the volume had it",
		build: cases.With(block, device(func(d *facts.BlockDevice) { d.ReadOnly = true }), nextPod(7)),
		want:  []string{"DeviceReadOnly target:"},
	},
	{
		name:  "block: attached write-protected, after another pod of the volume had it",
		build: cases.With(block, device(func(d *facts.BlockDevice) { d.ReadOnly = true }), nextPod(8)),
	},

	{
		name:  "backing file deleted",
		build: cases.With(device(func(d *facts.BlockDevice) { d.BackingFileGone = true })),
		want:  []string{"BackingFileGone target: the file behind sdb"},
	},

	{name: "mapping", build: cases.With(mapping(facts.Mapping{}))},
	{
		name:  "suspended, and silent",
		build: cases.With(mapping(facts.Mapping{Suspended: true}), hung()),
		want:  []string{`DeviceMappingDead target: "vg-lv" is suspended`},
	},
	{
		name:  "suspended beneath, and silent",
		build: cases.With(mapping(facts.Mapping{Suspended: true, SuspendedBelow: "vg-pv"}), hung()),
		want:  []string{`DeviceMappingDead target: "vg-lv" lies on "vg-pv", which is suspended`},
	},
	{name: "suspended, and answers", build: cases.With(mapping(facts.Mapping{Suspended: true}))},
	{
		name:  "suspended, and fails",
		build: cases.With(mapping(facts.Mapping{Suspended: true}), reading(syscall.EIO)),
		want:  []string{"DeviceMappingDead target: suspended"},
	},
	{
		name:  "orphaned, and silent",
		build: cases.With(mapping(facts.Mapping{Orphaned: true}), hung()),
		want:  []string{"DeviceMappingDead target: lies on a device that is gone"},
	},
	{
		name:  "orphaned, and fails",
		build: cases.With(mapping(facts.Mapping{Orphaned: true}), probe(syscall.EIO)),
		want:  []string{"DeviceMappingDead target: lies on"},
	},
	{
		name:  "orphaned, and answers",
		build: cases.With(mapping(facts.Mapping{Orphaned: true})),
		want:  []string{"DeviceMappingDead target: lies on"},
	},
	{
		name:  "orphaned and suspended",
		build: cases.With(mapping(facts.Mapping{Orphaned: true, Suspended: true}), hung()),
		want:  []string{"DeviceMappingDead target: lies on"},
	},
	{
		name:  "gone with its mapping",
		build: cases.With(mapping(facts.Mapping{Orphaned: true}), device(func(d *facts.BlockDevice) { d.Missing = true }), hung()),
		want:  []string{"DeviceMissing target: sdb"},
	},
	{
		name:  "shut down above a dead mapping",
		build: cases.With(shut, mapping(facts.Mapping{Orphaned: true})),
		want:  []string{"FilesystemShutdown target:", "DeviceMappingDead target:"},
	},
	{
		name:  "shut down, and the device is gone",
		build: cases.With(shut, device(func(d *facts.BlockDevice) { d.Missing = true }), reading(syscall.ENXIO)),
		want:  []string{"FilesystemShutdown target:", "DeviceMissing target: sdb is gone"},
	},
	{
		name:  "shut down, and all paths failed",
		build: cases.With(shut, deadPaths(2), reading(syscall.EIO)),
		want:  []string{"FilesystemShutdown target:", "PathsFailed target:"},
	},
	{
		name:  "shut down, and the device is unreadable",
		build: cases.With(shut, reading(syscall.EIO)),
		want:  []string{"FilesystemShutdown target:", "DeviceReadError target:"},
	},
	{
		name:  "shut down, and silent",
		build: cases.With(shut, hung()),
		want:  []string{"FilesystemShutdown target:", "NotResponding target:"},
	},
	{
		name:  "shut down, and the device is smaller",
		build: cases.With(shut, sized(1)),
		want:  []string{"FilesystemShutdown target:", "DeviceSizeChanged target:"},
	},
	{name: "shut down, and the device answers", build: cases.With(shut), want: []string{"FilesystemShutdown target:"}},
}

// sized is a device of so many bytes; recorded were 1<<30.
func sized(bytes int64) cases.Change {
	return device(func(d *facts.BlockDevice) { d.Identity.Size = bytes })
}

// unnamed is a disk with nothing of its own that could identify it, which may
// have been the same all along.
func unnamed(recordedSeq, seq uint64) cases.Change {
	return func(c *healer.Case) {
		c.Record.Identity.Serial, c.Record.DiskSeq = "", recordedSeq
		device(func(d *facts.BlockDevice) { d.Identity.Serial, d.DiskSeq = "", seq })(c)
	}
}

func short(bytes uint64) cases.Change {
	return superblock(func(sb *healer.Superblock) { sb.Opened.Short = bytes })
}

const anotherBoot = "next"

var sizeExamples = []example{
	{
		name:  "a backing file too short",
		build: cases.With(short(512)),
		want:  []string{"DeviceSizeChanged target: the file behind sdb is 512 bytes too short"},
	},
	{
		name:  "a backing file too short, never seen",
		build: cases.With(cases.Unrecorded, short(1)),
		want:  []string{"DeviceSizeChanged target: 1 bytes"},
	},
	{
		name:  "one byte less",
		build: cases.With(sized(1<<30 - 1)),
		want:  []string{"DeviceSizeChanged target: sdb has 1073741823 bytes, recorded were 1073741824"},
	},
	{name: "the same size", build: cases.With(sized(1 << 30))},
	{name: "one byte more", build: cases.With(sized(1<<30 + 1))},
	{name: "smaller, never seen", build: cases.With(cases.Unrecorded, sized(1))},
	{name: "smaller, the size is unknown", build: cases.With(sized(0))},
	{
		name:  "smaller, another boot",
		build: cases.With(sized(1), func(c *healer.Case) { c.BootID = anotherBoot }),
		want:  []string{"DeviceSizeChanged target:"},
	},
	{
		name:  "smaller, and another serial",
		build: cases.With(sized(1), device(func(d *facts.BlockDevice) { d.Identity.Serial = "x" })),
		want:  []string{"WrongVolumeMounted target: serial", "WrongVolumeMounted staging: serial"},
	},
	{
		name:  "smaller, and another UUID",
		build: cases.With(sized(1), device(func(d *facts.BlockDevice) { d.Identity.FilesystemUUID = "x" })),
		want:  []string{"WrongVolumeMounted target: UUID", "WrongVolumeMounted staging: UUID"},
	},
	{
		name:  "smaller, the same disk all along",
		build: cases.With(sized(1), unnamed(5, 5)),
		want:  []string{"DeviceSizeChanged target:"},
	},
	{
		name:  "smaller, another disk",
		build: cases.With(sized(1), unnamed(5, 6)),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{
		name:  "smaller, disks are not told apart",
		build: cases.With(sized(1), unnamed(0, 0)),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{
		name:  "smaller, unnamed, another boot",
		build: cases.With(sized(1), unnamed(5, 5), func(c *healer.Case) { c.BootID = anotherBoot }),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{
		name:  "smaller, and unreadable",
		build: cases.With(sized(1), reading(syscall.EIO)),
		want:  []string{"DeviceReadError target:"},
	},
}

// deadPaths are so many ways to the device, all of which have failed.
func deadPaths(n int) cases.Change {
	return device(func(d *facts.BlockDevice) {
		for i := range n {
			d.DeadPaths = append(d.DeadPaths, fmt.Sprintf("sd%c offline", 'c'+i))
		}
	})
}

var pathExamples = []example{
	{name: "all paths failed, and it answers", build: cases.With(deadPaths(2))},
	{
		name:  "all paths failed, and it is silent",
		build: cases.With(deadPaths(2), hung()),
		want:  []string{"PathsFailed target: all paths to sdb have failed: sdc offline, sdd offline"},
	},
	{
		name:  "all paths failed, and it fails",
		build: cases.With(deadPaths(2), reading(syscall.EIO)),
		want:  []string{"PathsFailed target: all paths"},
	},
	{name: "no dead paths known, and it is silent", build: cases.With(hung()), want: []string{"NotResponding target:"}},
}

// The same fault is worse when the storage does not answer.
func TestDeviceFaultsByWhetherItAnswers(t *testing.T) {
	for name, spoil := range map[string]cases.Change{
		"orphaned mapping": mapping(facts.Mapping{Orphaned: true}),
	} {
		for want, more := range map[healer.Status]func(*healer.Case){
			healer.Degraded: func(*healer.Case) {}, healer.Inaccessible: hung(),
		} {
			f, err := New(idle{t}).Examine(cases.With(spoil, more)())
			if err != nil || len(f.Conditions) != 1 || f.Conditions[0].Status != want {
				t.Errorf("%s: %+v, %v; want %s", name, f.Conditions, err, want)
			}
		}
	}
}

func TestMessageNamesFewPaths(t *testing.T) {
	f, err := New(idle{t}).Examine(cases.With(deadPaths(20), hung())())
	if err != nil || strings.Count(f.Conditions[0].Message, "offline") != maxPathsListed {
		t.Errorf("%+v, %v", f.Conditions, err)
	}
}
