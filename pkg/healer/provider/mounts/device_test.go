package mounts

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// device changes what sysfs knows of the device.
func device(change func(*facts.BlockDevice)) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) { change(sb.Device) })
}

// shut is an ext4 that shut itself down.
var shut = superblock(func(sb *facts.Superblock) { sb.Shutdown = true })

// reading is what a read of the device itself gave.
func reading(e syscall.Errno) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) { sb.Answer = facts.Answer{Asked: true, Op: facts.OpReadDevice, Errno: e} })
}

func mapping(m facts.Mapping) func(*healer.Case) {
	m.Name = "vg-lv"
	return device(func(d *facts.BlockDevice) { d.Mapping = &m })
}

var deviceExamples = []example{
	{"unreadable device", with(reading(syscall.EIO)), []string{"DeviceReadError target: read the device: input/output error (EIO)"}},
	{"unreadable sector", with(reading(syscall.ENODATA)), []string{"DeviceReadError target: ENODATA"}},
	{"device without a medium", with(reading(syscall.ENOMEDIUM)), []string{"DeviceMissing target: ENOMEDIUM"}},
	{"device gone while it was read", with(reading(syscall.ENXIO)), []string{"DeviceMissing target: ENXIO"}},
	{"unreadable filesystem", with(probe(syscall.EIO)), []string{"IOError target: statx"}},
	{"block: unreadable device", with(block, reading(syscall.EIO)), []string{"DeviceReadError target:"}},

	{"write-protected", with(device(func(d *facts.BlockDevice) { d.ReadOnly = true })), []string{"DeviceReadOnly target: sdb is write-protected"}},
	{"write-protected, as it says itself", with(superblock(func(sb *facts.Superblock) { sb.Opened.ReadOnly = true })), []string{"DeviceReadOnly target:"}},
	{"write-protected, for readers only", with(device(func(d *facts.BlockDevice) { d.ReadOnly = true }), readOnlyVolume), nil},
	{"write-protected, recorded read-only", with(
		device(func(d *facts.BlockDevice) { d.ReadOnly = true }),
		recorded(0, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }), recorded(1, func(r *healer.MountPointRecord) { r.ReadOnlySuper = true }),
	), nil},
	{"block: write-protected", with(block, device(func(d *facts.BlockDevice) { d.ReadOnly = true })), []string{"DeviceReadOnly target:"}},

	{"backing file deleted", with(device(func(d *facts.BlockDevice) { d.BackingFileGone = true })), []string{"BackingFileGone target: the file behind sdb"}},

	{"mapping", with(mapping(facts.Mapping{})), nil},
	{"suspended, and silent", with(mapping(facts.Mapping{Suspended: true}), hung()), []string{`DeviceMappingDead target: "vg-lv" is suspended`}},
	{"suspended beneath, and silent", with(mapping(facts.Mapping{Suspended: true, SuspendedBelow: "vg-pv"}), hung()), []string{`DeviceMappingDead target: "vg-lv" lies on "vg-pv", which is suspended`}},
	{"suspended, and answers", with(mapping(facts.Mapping{Suspended: true})), nil},
	{"suspended, and fails", with(mapping(facts.Mapping{Suspended: true}), reading(syscall.EIO)), []string{"DeviceMappingDead target: suspended"}},
	{"orphaned, and silent", with(mapping(facts.Mapping{Orphaned: true}), hung()), []string{"DeviceMappingDead target: lies on a device that is gone"}},
	{"orphaned, and fails", with(mapping(facts.Mapping{Orphaned: true}), probe(syscall.EIO)), []string{"DeviceMappingDead target: lies on"}},
	{"orphaned, and answers", with(mapping(facts.Mapping{Orphaned: true})), []string{"DeviceMappingDead target: lies on"}},
	{"orphaned and suspended", with(mapping(facts.Mapping{Orphaned: true, Suspended: true}), hung()), []string{"DeviceMappingDead target: lies on"}},
	{"gone with its mapping", with(mapping(facts.Mapping{Orphaned: true}), device(func(d *facts.BlockDevice) { d.Missing = true }), hung()), []string{"DeviceMissing target: sdb"}},
	{"shut down above a dead mapping", with(shut, mapping(facts.Mapping{Orphaned: true})), []string{"FilesystemShutdown target:", "DeviceMappingDead target:"}},
	{"shut down, and the device is gone", with(shut, device(func(d *facts.BlockDevice) { d.Missing = true }), reading(syscall.ENXIO)), []string{"FilesystemShutdown target:", "DeviceMissing target: sdb is gone"}},
	{"shut down, and all paths failed", with(shut, deadPaths(2), reading(syscall.EIO)), []string{"FilesystemShutdown target:", "PathsFailed target:"}},
	{"shut down, and the device is unreadable", with(shut, reading(syscall.EIO)), []string{"FilesystemShutdown target:", "DeviceReadError target:"}},
	{"shut down, and silent", with(shut, hung()), []string{"FilesystemShutdown target:", "NotResponding target:"}},
	{"shut down, and the device is smaller", with(shut, sized(1)), []string{"FilesystemShutdown target:", "DeviceSizeChanged target:"}},
	{"shut down, and the device answers", with(shut), []string{"FilesystemShutdown target:"}},
}

// sized is a device of so many bytes; recorded were 1<<30.
func sized(bytes int64) func(*healer.Case) {
	return device(func(d *facts.BlockDevice) { d.Identity.Size = bytes })
}

// unnamed is a disk with nothing of its own that could identify it, which may
// have been the same all along.
func unnamed(recordedSeq, seq uint64) func(*healer.Case) {
	return func(c *healer.Case) {
		c.Record.Identity.Serial, c.Record.DiskSeq = "", recordedSeq
		device(func(d *facts.BlockDevice) { d.Identity.Serial, d.DiskSeq = "", seq })(c)
	}
}

func short(bytes uint64) func(*healer.Case) {
	return superblock(func(sb *facts.Superblock) { sb.Opened.Short = bytes })
}

const anotherBoot = "next"

var sizeExamples = []example{
	{
		name:  "a backing file too short",
		build: with(short(512)),
		want:  []string{"DeviceSizeChanged target: the file behind sdb is 512 bytes too short"},
	},
	{name: "a backing file too short, never seen", build: with(unrecorded, short(1)), want: []string{"DeviceSizeChanged target: 1 bytes"}},
	{
		name:  "one byte less",
		build: with(sized(1<<30 - 1)),
		want:  []string{"DeviceSizeChanged target: sdb has 1073741823 bytes, recorded were 1073741824"},
	},
	{name: "the same size", build: with(sized(1 << 30))},
	{name: "one byte more", build: with(sized(1<<30 + 1))},
	{name: "smaller, never seen", build: with(unrecorded, sized(1))},
	{name: "smaller, the size is unknown", build: with(sized(0))},
	{
		name:  "smaller, another boot",
		build: with(sized(1), func(c *healer.Case) { c.BootID = anotherBoot }),
		want:  []string{"DeviceSizeChanged target:"},
	},
	{
		name:  "smaller, and another serial",
		build: with(sized(1), device(func(d *facts.BlockDevice) { d.Identity.Serial = "x" })),
		want:  []string{"WrongVolumeMounted target: serial", "WrongVolumeMounted staging: serial"},
	},
	{
		name:  "smaller, and another UUID",
		build: with(sized(1), device(func(d *facts.BlockDevice) { d.Identity.FilesystemUUID = "x" })),
		want:  []string{"WrongVolumeMounted target: UUID", "WrongVolumeMounted staging: UUID"},
	},
	{name: "smaller, the same disk all along", build: with(sized(1), unnamed(5, 5)), want: []string{"DeviceSizeChanged target:"}},
	{
		name:  "smaller, another disk",
		build: with(sized(1), unnamed(5, 6)),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{
		name:  "smaller, disks are not told apart",
		build: with(sized(1), unnamed(0, 0)),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{
		name:  "smaller, unnamed, another boot",
		build: with(sized(1), unnamed(5, 5), func(c *healer.Case) { c.BootID = anotherBoot }),
		want:  []string{"WrongVolumeMounted target: 1 bytes", "WrongVolumeMounted staging: 1 bytes"},
	},
	{name: "smaller, and unreadable", build: with(sized(1), reading(syscall.EIO)), want: []string{"DeviceReadError target:"}},
}

// deadPaths are so many ways to the device, all of which have failed.
func deadPaths(n int) func(*healer.Case) {
	return device(func(d *facts.BlockDevice) {
		for i := range n {
			d.DeadPaths = append(d.DeadPaths, fmt.Sprintf("sd%c offline", 'c'+i))
		}
	})
}

var pathExamples = []example{
	{"all paths failed, and it answers", with(deadPaths(2)), nil},
	{"all paths failed, and it is silent", with(deadPaths(2), hung()), []string{"PathsFailed target: all paths to sdb have failed: sdc offline, sdd offline"}},
	{"all paths failed, and it fails", with(deadPaths(2), reading(syscall.EIO)), []string{"PathsFailed target: all paths"}},
	{"no dead paths known, and it is silent", with(hung()), []string{"NotResponding target:"}},
}

// The same fault is worse when the storage does not answer.
func TestDeviceFaultsByWhetherItAnswers(t *testing.T) {
	for name, spoil := range map[string]func(*healer.Case){
		"orphaned mapping": mapping(facts.Mapping{Orphaned: true}),
	} {
		for want, more := range map[healer.Status]func(*healer.Case){
			healer.Degraded: func(*healer.Case) {}, healer.Inaccessible: hung(),
		} {
			f, err := New(idle{t}).Examine(with(spoil, more)())
			if err != nil || len(f.Conditions) != 1 || f.Conditions[0].Status != want {
				t.Errorf("%s: %+v, %v; want %s", name, f.Conditions, err, want)
			}
		}
	}
}

func TestMessageNamesFewPaths(t *testing.T) {
	f, err := New(idle{t}).Examine(with(deadPaths(20), hung())())
	if err != nil || strings.Count(f.Conditions[0].Message, "offline") != maxPathsListed {
		t.Errorf("%+v, %v", f.Conditions, err)
	}
}
