package mounts

import (
	"fmt"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	adviceDevice  = "see whether the disk is still attached to this node"
	adviceSave    = "copy away what can still be read, before anything is unmounted; see whether the disk is still attached to this node"
	adviceMapping = "see what became of the devices below it (dmsetup table, dmsetup info)"
	adviceResume  = "see what suspended it (a snapshot, a resize or a key change under way); if nothing of that runs any more, resume it (dmsetup resume)"
	advicePaths   = "see why the paths to the storage failed (cables, switches, targets)"
	adviceProtect = "see what write-protected the device (blockdev --getro)"
	adviceBacking = "copy the data away while the device still has it: without another name of the file it is lost with the last user of the device"
	adviceShrunk  = "restore the device to its size before anything else is written; do not check the filesystem as it is"
)

// maxPathsListed bounds how many paths a message names.
const maxPathsListed = 8

// deviceGone judges the device by the kernel's facts, where the probe failed or the
// facts are clear alone.
func (ev evaluator) deviceGone() []healer.Condition {
	d := ev.sb.Device
	if d == nil {
		return nil
	}
	failed := ev.sb.Answer.TimedOut || ev.sb.Answer.Errno != 0
	switch m := d.Mapping; {
	case d.Missing:
		return ev.one(healer.Inaccessible, healer.DeviceMissing, adviceDevice, "block device %s is gone", deviceName(*d))
	case m != nil && m.Orphaned && failed:
		return ev.one(healer.Inaccessible, healer.DeviceMappingDead, adviceMapping, "%s lies on a device that is gone", mappingName(*m))
	// A snapshot suspends a mapping for a moment: one that is suspended longer than a
	// probe takes is not being snapshotted.
	case m != nil && m.SuspendedBelow != "" && failed:
		return ev.one(healer.Inaccessible, healer.DeviceMappingDead, adviceResume, "%s lies on %q, which is suspended, and all I/O to it waits", mappingName(*m), m.SuspendedBelow)
	case m != nil && m.Suspended && failed:
		return ev.one(healer.Inaccessible, healer.DeviceMappingDead, adviceResume, "%s is suspended, and all I/O to it waits", mappingName(*m))
	}
	if failed && len(d.DeadPaths) > 0 {
		return ev.one(healer.Inaccessible, healer.PathsFailed, advicePaths, "all paths to %s have failed: %s",
			deviceName(*d), strings.Join(d.DeadPaths[:min(len(d.DeadPaths), maxPathsListed)], ", "))
	}
	return nil
}

// shrunk compares the size with what was recorded of the same device, and a loop
// device with its file. A device may grow.
func (ev evaluator) shrunk() []healer.Condition {
	d, name := ev.sb.Device, "the device"
	if d != nil {
		name = deviceName(*d)
	}
	switch {
	case ev.sb.Opened.Short > 0:
		return ev.one(healer.Inaccessible, healer.DeviceSizeChanged, adviceShrunk,
			"the file behind %s is %d bytes too short for it", name, ev.sb.Opened.Short)
	case d != nil && ev.c.Record != nil && d.Identity.Size > 0 && d.Identity.Size < ev.c.Record.Identity.Size && healer.SameDisk(ev.c, ev.sb):
		return ev.one(healer.Inaccessible, healer.DeviceSizeChanged, adviceShrunk,
			"%s has %d bytes, recorded were %d", name, d.Identity.Size, ev.c.Record.Identity.Size)
	}
	return nil
}

// deviceWeak reports what is wrong with a device that still answers.
func (ev evaluator) deviceWeak() []healer.Condition {
	d := ev.sb.Device
	if d == nil {
		return nil
	}
	var found []healer.Condition
	add := func(r healer.Reason, advice, format string, args ...any) {
		found = append(found, ev.one(healer.Degraded, r, advice, format, args...)...)
	}
	if d.ReadOnly && ev.meantWritable() {
		add(healer.DeviceReadOnly, adviceProtect, "%s is write-protected, and the volume is not", deviceName(*d))
	}
	if d.BackingFileGone {
		add(healer.BackingFileGone, adviceBacking, "the name of the file behind %s was removed", deviceName(*d))
	}
	if m := d.Mapping; m != nil && m.Orphaned {
		add(healer.DeviceMappingDead, adviceMapping, "%s lies on a device that is gone", mappingName(*m))
	}
	return found
}

func deviceName(d facts.BlockDevice) string {
	if d.Name != "" {
		return d.Name
	}
	return d.Dev.String()
}

func mappingName(m facts.Mapping) string { return fmt.Sprintf("device-mapper device %q", m.Name) }
