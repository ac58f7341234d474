package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// openNames names what the server has open, a pidfd by its process.
func openNames(n *harness.Node) (names []string) {
	dir := fmt.Sprintf("/proc/%d", n.PID())
	entries, err := os.ReadDir(dir + "/fd")
	harness.Must(n.T, err)
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if err != nil {
			continue // closed since
		}
		if name == "anon_inode:[pidfd]" {
			info, _ := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name())) // closed since, if it is not there
			_, pid, _ := strings.Cut(string(info), "\nPid:\t")
			pid, _, _ = strings.Cut(pid, "\n")
			name = "[pidfd of " + pid + "]"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// clockTick is that of proc(5), on every architecture that is served.
const clockTick = 10 * time.Millisecond

// cpuOf is the CPU time of the server and of its workers, those that have ended included.
func cpuOf(n *harness.Node) (used time.Duration) {
	for _, pid := range append(n.Workers(), n.PID()) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended, and is its parent's from then on
		}
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+2:]))
		for _, field := range fields[11:15] { // utime, stime, and those of children that ended
			ticks, err := strconv.ParseInt(field, 10, 64)
			harness.Must(n.T, err)
			used += time.Duration(ticks) * clockTick
		}
	}
	return used
}
