package host

import (
	"os"
	"strconv"
	"strings"
)

// BtrfsErrors is what a btrfs counted, over all its devices. The counters live on
// the disks, over mounts and boots, until "btrfs device stats --reset".
type BtrfsErrors struct {
	Writes  uint64
	Reads   uint64
	Flushes uint64
	// Corruptions are checksums that did not match, Generations blocks older
	// than they should be: a write was lost.
	Corruptions uint64
	Generations uint64
	// Missing is the number of devices that were not there when it was mounted.
	Missing int
}

// Count is the number of errors of all kinds.
func (e BtrfsErrors) Count() uint64 {
	return e.Writes + e.Reads + e.Flushes + e.Corruptions + e.Generations
}

// BtrfsErrors reads the error counters of a mounted btrfs (Linux 5.14; missing
// devices 5.6); nil when there is none with that UUID. The attributes show
// variables and take no lock (fs/btrfs/sysfs.c).
func (s Sysfs) BtrfsErrors(fsid string) *BtrfsErrors {
	dir := string(s) + "/fs/btrfs/" + fsid + "/devinfo"
	devices, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	e := &BtrfsErrors{}
	counters := map[string]*uint64{
		"write_errs":      &e.Writes,
		"read_errs":       &e.Reads,
		"flush_errs":      &e.Flushes,
		"corruption_errs": &e.Corruptions,
		"generation_errs": &e.Generations,
	}
	for _, device := range devices {
		info := dir + "/" + device.Name()
		if text(info+"/missing") == "1" {
			e.Missing++
		}
		// It says "invalid" before the counters were read from the disk.
		for line := range strings.Lines(text(info + "/error_stats")) {
			kind, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if n, err := strconv.ParseUint(value, 10, 64); err == nil && counters[kind] != nil {
				*counters[kind] += n
			}
		}
	}
	return e
}
