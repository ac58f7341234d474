package node

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
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
			paths = append(paths, pathsOf(deviceAt(lower).disk)...)
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
