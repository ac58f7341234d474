package node

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// maxStacked bounds the walk down through mappings on mappings.
const maxStacked = 8

func isMapping(dir string) bool { return strings.HasPrefix(filepath.Base(dir), "dm-") }

// mappingOf reads a mapping and what lies below it, and returns the paths at the
// bottom if these can replace each other.
//
// The attributes show variables (drivers/md/dm-sysfs.c). Name and UUID are copied
// under a mutex, which is held for moments only, and not while a mapping is
// suspended or its table changed.
func mappingOf(dir string, deeper int) (facts.Mapping, []devicePath) {
	m := facts.Mapping{
		Name:      text(dir + "/dm/name"),
		UUID:      text(dir + "/dm/uuid"),
		Suspended: text(dir+"/dm/suspended") == "1",
	}
	slaves, err := os.ReadDir(dir + "/slaves")
	if err != nil || deeper == 0 {
		return m, nil
	}
	var paths []devicePath
	gone := 0
	for _, slave := range slaves {
		lower, err := follow(dir + "/slaves/" + slave.Name())
		switch {
		case err != nil:
			// It was just removed from the table.
		case !exists(lower + "/holders/" + filepath.Base(dir)):
			// The link outlives the device. Another device that has its name by now does
			// not have this mapping among its holders.
			gone++
			paths = append(paths, devicePath{name: nameOf(lower), state: "gone", failed: true})
		case isMapping(lower):
			below, its := mappingOf(lower, deeper-1)
			if below.Suspended && !m.Suspended {
				m.Suspended, m.SuspendedBelow = true, cmp.Or(below.SuspendedBelow, below.Name)
			}
			if below.Orphaned {
				gone++
			}
			paths = append(paths, its...)
		default:
			disk, _ := diskOf(lower)
			paths = append(paths, pathsOf(disk)...)
		}
	}
	switch {
	case len(slaves) == 0:
		m.Orphaned = madeOf.MatchString(m.UUID)
	case isMultipath(m.UUID):
		m.Orphaned = gone == len(slaves)
	default:
		m.Orphaned = gone > 0
		if len(slaves) > 1 {
			paths = nil // all of them are needed
		}
	}
	return m, paths
}

func isMultipath(uuid string) bool { return strings.HasPrefix(uuid, "mpath-") }

// madeOf matches the UUIDs of mappings that always lie on a device, as cryptsetup,
// LVM, multipathd and kpartx write them. Others may be made of the targets "zero" and
// "error" only.
var madeOf = regexp.MustCompile(`^(CRYPT-|LVM-|mpath-|part[0-9]+-)`)

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

// backingFileGone reports whether the name of the file behind a loop device, given by its
// directory, was removed or replaced. (A file whose own name ends in " (deleted)" looks
// the same.) The path comes from the kernel's name cache, also when the filesystem that
// it lies on hangs (loop_attr_* in drivers/block/loop.c: a spinlock at most).
func backingFileGone(disk string) bool {
	return strings.HasPrefix(filepath.Base(disk), "loop") && strings.HasSuffix(text(disk+"/loop/backing_file"), " (deleted)")
}
