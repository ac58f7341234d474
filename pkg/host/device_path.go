package host

import (
	"os"
	"path/filepath"
	"strings"
)

// DevicePath is one path to a storage that the kernel has a state for.
//
// Which of several paths a multipath layer uses is not read (ALUA, ANA, path groups):
// a standby path is no fault.
type DevicePath struct {
	// Name is that of the SCSI disk or of the NVMe controller.
	Name string
	// State is the kernel's word, or PathGone.
	State string
	// Failed is true when the kernel refuses what is sent down this path.
	Failed bool
	// Waiting is true when the kernel holds what is sent down this path until it
	// works again or is given up. With neither, it carries I/O.
	Waiting bool
}

// PathGone is the state of a path whose device is no longer in sysfs, while a mapping
// still has it in its table.
const PathGone = "gone"

// pathsOf returns the paths of a whole disk that is no mapping.
//
// It goes by the disk's name, which its driver chose: the attribute "state" of another
// driver may ask its device.
func pathsOf(disk string) []DevicePath {
	parent, name := filepath.Split(disk)
	parent = filepath.Clean(parent)
	switch {
	case strings.HasPrefix(name, "sd"):
		return only(scsiPath, nameOf(disk), disk+"/device/state")
	case !strings.HasPrefix(name, "nvme"):
		return nil
	case strings.HasPrefix(filepath.Base(parent), "nvme-subsys"):
		return controllers(parent, name)
	default:
		return only(nvmePath, filepath.Base(parent), parent+"/state")
	}
}

func only(kind func(name, state string) DevicePath, name, file string) []DevicePath {
	state := text(file)
	if state == "" {
		return nil
	}
	return []DevicePath{kind(name, state)}
}

// controllers returns the paths of a disk of native NVMe multipath: those
// controllers of its subsystem that have the namespace, which on each is a hidden
// disk nvme<subsystem>c<controller>n<namespace>. (Linux 6.15 links those that
// could ever be used in "multipath" as well.)
func controllers(subsystem, head string) []DevicePath {
	entries, err := os.ReadDir(subsystem)
	if err != nil {
		return nil
	}
	instance, namespace, _ := strings.Cut(strings.TrimPrefix(head, "nvme"), "n")
	var paths []DevicePath
	for _, e := range entries {
		controller, isController := strings.CutPrefix(e.Name(), "nvme")
		if !isController || e.Type() != os.ModeSymlink {
			continue
		}
		dir := subsystem + "/" + e.Name()
		if exists(dir + "/nvme" + instance + "c" + controller + "n" + namespace) {
			paths = append(paths, only(nvmePath, e.Name(), dir+"/state")...)
		}
	}
	return paths
}

// scsiPath reads enum scsi_device_state as scsi_device_state_check in
// drivers/scsi/scsi_lib.c does for a request: it fails one to a device that was
// set offline by hand, by the error handler or by the transport, and to one
// that is being deleted; it puts one back in the queue while the transport searches
// for the device (blocked) or the kernel has quiesced it. The attribute shows a
// variable and takes no lock.
func scsiPath(name, state string) DevicePath {
	p := DevicePath{Name: name, State: state}
	switch state {
	case "offline", "transport-offline", "cancel", "deleted":
		p.Failed = true
	case "blocked", "created-blocked", "quiesce":
		p.Waiting = true
	}
	return p
}

// nvmePath reads enum nvme_ctrl_state as nvme_fail_nonready_command and
// nvme_available_path in drivers/nvme/host do: a controller that is reset or
// reconnected may come back, and requests wait for it or take another path; one
// that is deleted or dead does not. (fast_io_fail_tmo ends the waiting without a
// change of the state.) The attribute shows a variable and takes no lock.
func nvmePath(name, state string) DevicePath {
	p := DevicePath{Name: name, State: state}
	switch state {
	case "dead", "deleting", "deleting (no IO)":
		p.Failed = true
	case "new", "resetting", "connecting":
		p.Waiting = true
	}
	return p
}
