package healer

import (
	"fmt"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// SameDiskSeq reports whether the device has been the same disk since the record was
// written.
func SameDiskSeq(c Case, sb Superblock) bool {
	return c.Record.BootID == c.BootID && c.Record.DiskSeq != 0 && c.Record.DiskSeq == sb.Device.DiskSeq
}

// SameDisk reports whether the device is the recorded one, whatever its size: by its
// disk sequence number, or by a serial number, WWID or device-mapper UUID.
func SameDisk(c Case, sb Superblock) bool {
	if c.Record == nil || sb.Device == nil {
		return false
	}
	recorded := c.Record.Identity
	recorded.Size = 0
	own := recorded.Serial != "" || recorded.WWID != "" || recorded.DMUUID != ""
	return (SameDiskSeq(c, sb) || own) && DiffersSoFar(recorded, sb) == ""
}

// Differs returns how the identity of a device differs from the recorded one, empty if
// it does not. A part that the record has and the device lacks is a difference: a clone
// of a disk has everything but its serial number. A device may have grown.
func Differs(recorded, now facts.Identity) string {
	told := ""
	if now != (facts.Identity{}) { // else the device is gone, and no new stage brings it back
		told = ": if its filesystem shut itself down, that tells it when it is staged anew (docs/eviction.md)"
	}
	for _, part := range []struct{ name, recorded, now, missing string }{
		{"filesystem UUID", recorded.FilesystemUUID, now.FilesystemUUID, told},
		{"serial number", recorded.Serial, now.Serial, ""},
		{"WWID", recorded.WWID, now.WWID, ""},
		{"device-mapper UUID", recorded.DMUUID, now.DMUUID, ""},
	} {
		switch {
		case part.recorded == "" || part.recorded == part.now:
		case part.now == "":
			return fmt.Sprintf("no %s can be read, recorded was %q%s", part.name, part.recorded, part.missing)
		default:
			return fmt.Sprintf("%s is %q, recorded was %q", part.name, part.now, part.recorded)
		}
	}
	if recorded != (facts.Identity{}) && recorded.Partition != now.Partition {
		return fmt.Sprintf("it is partition %q of its disk, recorded was %q", now.Partition, recorded.Partition)
	}
	if now.Size < recorded.Size {
		return fmt.Sprintf("the device has %d bytes, recorded were %d", now.Size, recorded.Size)
	}
	return ""
}

// DiffersSoFar is Differs for a device whose filesystem UUID may not have been read,
// which is no difference.
func DiffersSoFar(recorded facts.Identity, sb Superblock) string {
	if sb.Device.Identity.FilesystemUUID == "" {
		recorded.FilesystemUUID = ""
	}
	return Differs(recorded, sb.Device.Identity)
}
