package workerops

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// FUSEDaemonsQuery asks which processes serve FUSE connections.
type FUSEDaemonsQuery struct {
	// Budget bounds the walk over all processes.
	Budget time.Duration
}

// FUSEDaemonsAnswer lists the processes that have the device of a FUSE connection open.
type FUSEDaemonsAnswer struct {
	Daemons []FUSEDaemon
	// Untold counts open FUSE devices of which the kernel does not say which connection
	// they are of: all of them below about Linux 6.16, else those without one.
	Untold int
	// Unseen counts processes that could not be examined.
	Unseen int
	// Cut is true when there may be more: the budget or the limit was reached.
	Cut bool
}

// FUSEDaemon is one process that has the device of a connection open.
type FUSEDaemon struct {
	// Connection is the connection's name in fusectl.
	Connection uint64
	PID        int
	// Command is the process's own choice, and any bytes.
	Command string
	// State is the letter of proc_pid_stat(5).
	State byte
	// Started is in time since the boot.
	Started time.Duration
	// Cgroup is the content of the process's cgroup file.
	Cgroup string
}

// daemonsLimit bounds the daemons that are named.
const daemonsLimit = 1024

func fuseDaemons(q FUSEDaemonsQuery) (a FUSEDaemonsAnswer, err error) {
	proc, err := openProcfs()
	if err != nil {
		return a, err
	}
	defer proc.close()
	s := newScan(proc)
	s.end = time.Now().Add(q.Budget)
	pids, err := s.whoRuns()
	if err != nil {
		return a, err
	}
	s.readProcesses(pids)
	each(s, s.processes, s.connectionsOf, func(p process, c connections, ok bool) {
		a.Untold += c.untold
		if c.unseen || !ok {
			s.unseen[p.pid] = true
		}
		for _, d := range c.daemons {
			if len(a.Daemons) == daemonsLimit {
				s.cut = true
				return
			}
			a.Daemons = append(a.Daemons, d)
		}
	})
	a.Unseen, a.Cut = s.unseenBesidesInit(), s.cut
	return a, nil
}

// unseenBesidesInit counts the processes that could not be examined. A security module
// may forbid to examine the init process, which is in the host's mount namespace and
// serves no volume.
func (s *scan) unseenBesidesInit() int {
	const initPID = 1
	if s.unseen[initPID] {
		return len(s.unseen) - 1
	}
	return len(s.unseen)
}

// connections are the FUSE connections whose devices a process has open.
type connections struct {
	daemons []FUSEDaemon
	untold  int
	unseen  bool
}

// connectionsOf reads the descriptors of one process. A pod may give any file the name
// of the device; only the device has a connection in its fdinfo.
func (s *scan) connectionsOf(p process) (c connections) {
	fds, err := s.proc.list(p.dir + "/fd")
	if err != nil {
		c.unseen = !gone(err)
		return c
	}
	seen := map[uint64]bool{}
	for _, fd := range fds {
		link, err := s.proc.readlink(p.dir + "/fd/" + fd)
		if err != nil || !strings.HasSuffix(link, "/fuse") {
			c.unseen = c.unseen || err != nil && !gone(err)
			continue
		}
		raw, err := s.proc.read(p.dir+"/fdinfo/"+fd, 512)
		if err != nil {
			c.unseen = c.unseen || !gone(err)
			continue
		}
		connection, told := connectionIn(raw)
		switch {
		case !told:
			c.untold++
		case !seen[connection]: // a daemon may have it open once for each of its threads
			seen[connection] = true
			d, ok := s.daemonOf(p)
			d.Connection = connection
			if ok {
				c.daemons = append(c.daemons, d)
			}
		}
	}
	return c
}

// connectionIn parses the connection in the text of fdinfo.
func connectionIn(fdinfo []byte) (connection uint64, told bool) {
	for line := range bytes.Lines(fdinfo) {
		if v, is := bytes.CutPrefix(line, []byte("fuse_connection:")); is {
			connection, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
			return connection, err == nil
		}
	}
	return 0, false
}

// daemonOf describes a process; ok is false for one that has ended.
func (s *scan) daemonOf(p process) (d FUSEDaemon, ok bool) {
	stat, err := s.proc.read(p.dir+"/stat", 4<<10)
	if err != nil {
		return d, false
	}
	name, started, ok := parseStat(stat)
	if !ok {
		return d, false
	}
	state := stat[bytes.LastIndexByte(stat, ')')+2] // parseStat found fields behind it
	cgroup, _ := s.proc.read(p.dir+"/cgroup", 8<<10)
	return FUSEDaemon{PID: p.pid, Command: name, State: state, Started: sinceBoot(started), Cgroup: string(cgroup)}, true
}

// sinceBoot converts a start time of proc_pid_stat(5).
func sinceBoot(ticks uint64) time.Duration {
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(ticks) * tick
}
