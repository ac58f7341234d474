package node

import (
	"path/filepath"
	"slices"
	"strings"
)

// devicePath is one way to a storage: a SCSI disk, or an NVMe disk of one controller.
type devicePath struct {
	name string
	// state is the kernel's word, or "gone".
	state string
	// failed is true when the kernel refuses what is sent down this path.
	failed bool
}

// pathsOf returns the path that a whole disk is; nil for other disks, and where the
// kernel shows no state.
//
// It goes by the disk's name, which its driver chose: the attribute "state" of another
// driver may ask its device. These show a variable and take no lock. A disk of native
// NVMe multipath has none: its device is a subsystem.
func pathsOf(disk string) []devicePath {
	name := nameOf(disk)
	if !strings.HasPrefix(name, "sd") && !strings.HasPrefix(name, "nvme") {
		return nil
	}
	state := text(filepath.Join(disk, "device/state"))
	if state == "" {
		return nil
	}
	return []devicePath{{name: name, state: state, failed: slices.Contains(refusing, state)}}
}

// refusing are the states in which a request fails at once: of SCSI as in
// scsi_device_state_check (drivers/scsi/scsi_lib.c), of NVMe as in
// nvme_fail_nonready_command (drivers/nvme/host). In others that carry no I/O, as
// "blocked" or "connecting", the kernel holds a request, and the path may come back.
var refusing = []string{"offline", "transport-offline", "cancel", "deleted", "dead", "deleting", "deleting (no IO)"}

// deadPaths returns the paths with their states if all have failed, otherwise nil.
func deadPaths(paths []devicePath) (dead []string) {
	for _, p := range paths {
		if !p.failed {
			return nil
		}
		dead = append(dead, p.name+" "+p.state)
	}
	return dead
}
