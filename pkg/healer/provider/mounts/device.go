package mounts

import (
	"fmt"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const (
	adviceDevice  = "see whether the disk is still attached to this node"
	adviceMedia   = "look into the kernel log and the disk's own (smartctl); copy the data away while it can still be read"
	adviceMapping = "see what became of the devices below it (dmsetup table, dmsetup info)"
	adviceResume  = "see who suspended it (a snapshot, a resize or a key change under way); if nobody is at work on it any more, dmsetup resume lets it go on"
	advicePaths   = "see why the paths to the storage failed (cables, switches, targets)"
	adviceProtect = "see who write-protected the device (blockdev --getro)"
	adviceBacking = "copy the data away while the device still has it: without another name of the file it is lost with the last user of the device"
	adviceShrunk  = "restore the device to its size before anything else is written; do not check the filesystem as it is"
)

// deviceGone judges the device by what the kernel knows of it, where the probe
// got no good answer or the kernel leaves no doubt.
func (b bench) deviceGone() []healer.Condition {
	d := b.sb.Device
	if d == nil {
		return nil
	}
	unwell := b.sb.Answer.Silent || b.sb.Answer.Errno != 0
	switch m := d.Mapping; {
	case d.Missing:
		return b.one(healer.Inaccessible, healer.DeviceMissing, adviceDevice, "block device %s is gone", deviceName(*d))
	case m != nil && m.Orphaned && unwell:
		return b.one(healer.Inaccessible, healer.DeviceMappingDead, adviceMapping, "%s lies on a device that is gone", mappingName(*m))
	// A snapshot suspends a mapping for a moment; one that lasts longer than a
	// probe is none.
	case m != nil && m.SuspendedBelow != "" && unwell:
		return b.one(healer.Inaccessible, healer.DeviceMappingDead, adviceResume, "%s lies on %q, which is suspended, and all that goes to it waits", mappingName(*m), m.SuspendedBelow)
	case m != nil && m.Suspended && unwell:
		return b.one(healer.Inaccessible, healer.DeviceMappingDead, adviceResume, "%s is suspended, and all that goes to it waits", mappingName(*m))
	}
	if failed, of := countFailed(d.Paths); unwell && of > 0 && failed == of {
		return b.one(healer.Inaccessible, healer.PathsFailed, advicePaths, "all paths to %s have failed: %s", deviceName(*d), listPaths(d.Paths))
	}
	return nil
}

// shrunk compares the size with what was recorded of the same device, and a loop
// device with its file. A device may grow.
func (b bench) shrunk() []healer.Condition {
	d := b.sb.Device
	switch {
	case b.sb.Opened.Short > 0:
		return b.one(healer.Inaccessible, healer.DeviceSizeChanged, adviceShrunk,
			"the file behind %s is %d bytes too short for it", b.deviceName(), b.sb.Opened.Short)
	case d != nil && b.c.Record != nil && d.Identity.Size > 0 && d.Identity.Size < b.c.Record.Identity.Size && healer.SameDisk(b.c, b.sb):
		return b.one(healer.Inaccessible, healer.DeviceSizeChanged, adviceShrunk,
			"%s has %d bytes, recorded were %d", deviceName(*d), d.Identity.Size, b.c.Record.Identity.Size)
	}
	return nil
}

// deviceWeak reports what is wrong with a device that still answers.
func (b bench) deviceWeak() []healer.Condition {
	d := b.sb.Device
	if d == nil {
		return nil
	}
	var found []healer.Condition
	add := func(r healer.Reason, advice, format string, args ...any) {
		found = append(found, b.one(healer.Degraded, r, advice, format, args...)...)
	}
	if len(b.sb.Media) > 0 {
		add(healer.DeviceMediaError, adviceMedia, "the first block of %s can be read, and %s", deviceName(*d), listBlocks(b.sb.Media))
	}
	if (d.ReadOnly || b.sb.Opened.ReadOnly) && b.meantWritable() {
		add(healer.DeviceReadOnly, adviceProtect, "%s is write-protected, and the volume is not", deviceName(*d))
	}
	if d.Loop != nil && d.Loop.Deleted {
		add(healer.BackingFileGone, adviceBacking, "the name of the file behind %s was removed", deviceName(*d))
	}
	if m := d.Mapping; m != nil && m.Orphaned {
		add(healer.DeviceMappingDead, adviceMapping, "%s lies on a device that is gone", mappingName(*m))
	}
	if failed, of := countFailed(d.Paths); failed > 0 {
		add(healer.PathsFailed, advicePaths, "%d of %d paths to %s have failed: %s", failed, of, deviceName(*d), listPaths(d.Paths))
	}
	if b.sb.Btrfs != nil && b.sb.Btrfs.Missing > 0 {
		add(healer.DeviceMissing, adviceDevice, "%d devices of the btrfs are missing", b.sb.Btrfs.Missing)
	}
	return found
}

func countFailed(paths []host.DevicePath) (failed, of int) {
	for _, p := range paths {
		if p.Failed {
			failed++
		}
	}
	return failed, len(paths)
}

// listBlocks says which blocks cannot be read.
func listBlocks(blocks []host.MediaError) string {
	var words []string
	for _, m := range blocks {
		why := "no answer"
		if m.Errno != 0 {
			why = host.ErrnoName(m.Errno)
		}
		words = append(words, fmt.Sprintf("the one at byte %d cannot (%s)", m.Offset, why))
	}
	return strings.Join(words, ", ")
}

// maxPathsListed bounds how many paths a message names.
const maxPathsListed = 8

func listPaths(paths []host.DevicePath) string {
	var words []string
	for _, p := range paths {
		if p.Failed && len(words) < maxPathsListed {
			words = append(words, p.Name+" "+p.State)
		}
	}
	return strings.Join(words, ", ")
}

func (b bench) deviceName() string {
	if b.sb.Device == nil {
		return "the device"
	}
	return deviceName(*b.sb.Device)
}

func deviceName(d host.BlockDevice) string {
	if d.Name != "" {
		return d.Name
	}
	return d.Dev.String()
}

// nameInFull is a device's name with that of its mapping: "dm-3" says nothing.
func nameInFull(d host.BlockDevice) string {
	if d.Mapping == nil || d.Mapping.Name == "" {
		return deviceName(d)
	}
	return fmt.Sprintf("%s (%s)", deviceName(d), mappingName(*d.Mapping))
}

func mappingName(m host.Mapping) string { return fmt.Sprintf("device-mapper device %q", m.Name) }
