package ops

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// MountingQuery asks which processes may be about to mount something at a path: those that
// have it in their arguments, as daemons of FUSE filesystems and their helpers do. A daemon
// that waits for its storage mounts late, also when nobody waits for it any more.
type MountingQuery struct {
	// Paths are the names of the path, as the healer and as the driver knows it.
	Paths []string
	// Since is the start of the earliest process that counts, in time since the boot.
	Since time.Duration
	// Driver is a process of the driver, 0 if none is known. The processes of its pod count,
	// and root's outside of pods: anybody may have anything in his arguments.
	Driver int
	// Budget bounds the walk over all processes.
	Budget time.Duration
}

// maxArguments bounds what is read of one process's arguments.
const maxArguments = 64 << 10

var errWalkCut = errors.New("not all processes could be looked at in time")

// mounting names the processes.
func mounting(q MountingQuery) (found []facts.FUSEDaemon, err error) {
	proc, _, err := openProcfs()
	if err != nil {
		return nil, err
	}
	defer proc.close()
	s := &scan{proc: proc, end: time.Now().Add(q.Budget)}
	return s.mounting(q)
}

// mounting fails where it names none and a process that counts may have the path: the arguments of one
// may be unreadable for as long as its storage does not answer (mmap_lock), and a worker that is not
// scheduled reads nothing in time. With "none" the driver would be called again, and start a second
// daemon beside that process.
func (s *scan) mounting(q MountingQuery) (found []facts.FUSEDaemon, err error) {
	pids, err := s.otherProcesses()
	if err != nil {
		return nil, err
	}
	pod := ""
	if q.Driver != 0 {
		pod = s.processOf(q.Driver).PodUID
	}
	each(s, pids, func(pid int) (none facts.FUSEDaemon) {
		// Its arguments are read at once: a daemon that goes on as its own child (daemon(3)) meanwhile
		// is not among pids.
		if d := s.counts(q, pid, pod); d.PID != 0 && s.names(pid, q.Paths) {
			return d
		}
		return none
	}, func(pid int, d facts.FUSEDaemon, ok bool) {
		switch {
		case d.PID != 0:
			found = append(found, d)
		case !ok && s.counts(q, pid, pod).PID != 0:
			err = fmt.Errorf("%w: process %d did not let its arguments be read", errWalkCut, pid)
		}
	})
	switch {
	case len(found) > 0:
		return found, nil
	case s.cut:
		return nil, errWalkCut
	default:
		return nil, err
	}
}

// counts describes a process that counts, whatever its arguments are; else the result is zero. Nothing
// that it reads can hang.
func (s *scan) counts(q MountingQuery, pid int, pod string) (none facts.FUSEDaemon) {
	st, err := s.stat(strconv.Itoa(pid))
	// The kernel cuts the start down to a hundredth of a second.
	if err != nil || st.started < q.Since.Truncate(time.Second/100) {
		return none // as most
	}
	d := s.processOf(pid).FUSEDaemon
	switch {
	case d.PID == 0, d.PodUID != pod && d.PodUID != "", d.PodUID == "" && !s.isRoots(pid):
		return none
	case d.Command == "healerctl": // which is told the path to heal
		return none
	}
	return d
}

func (s *scan) names(pid int, paths []string) bool {
	arguments, err := s.proc.read(strconv.Itoa(pid)+"/cmdline", maxArguments)
	// A path stands alone, or after the name of an option; one that is only a part of another
	// is another path.
	words := strings.FieldsFunc(string(arguments), func(r rune) bool { return r == 0 || r == '=' || r == ':' || r == ',' || unicode.IsSpace(r) })
	return err == nil && slices.ContainsFunc(words, func(w string) bool { return slices.Contains(paths, w) })
}

// isRoots reports whether a process has the effective user id 0.
func (s *scan) isRoots(pid int) bool {
	raw, err := s.proc.read(strconv.Itoa(pid)+"/status", 4<<10)
	if err != nil {
		return false
	}
	ids := strings.Fields(field(raw, "Uid")) // real, effective, saved, filesystem
	return len(ids) == 4 && ids[1] == "0"
}
