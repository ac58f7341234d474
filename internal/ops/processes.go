package ops

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// ProcessesQuery asks for the containers that run on this node, or for the FUSE daemons.
type ProcessesQuery struct {
	// Daemons asks for the FUSE daemons, and not for the containers. All open files of all
	// processes are read for that, which may take ten times as long, and a tenant's process
	// may have a million: who asks for containers does not wait for it.
	Daemons bool
	// Known is ProcessesAnswer.Known of the last answer with daemons.
	Known []facts.FUSEDaemon
	// PeersOf are the FUSE connections of whose daemons the peers are asked, too.
	PeersOf []uint64
	// Skip are the pods, or cgroup directories outside of pods, of which no open file is read.
	Skip []string
	// Budget bounds the walk over all processes.
	Budget time.Duration
}

// ProcessesAnswer says what one walk over all processes found.
type ProcessesAnswer struct {
	// Containers are the containers, and all other processes in a mount namespace other
	// than the host's, by cgroup directory.
	Containers []facts.Container
	// Daemons are the processes that have the device of a FUSE connection open which is
	// mounted in the host's mount namespace. Whoever has a user namespace may make any
	// number of other connections.
	Daemons []facts.FUSEDaemon
	// Known are the Daemons, and the former daemons of each connection that has none any more
	// and is still mounted.
	Known []facts.FUSEDaemon
	// Peers are with whom the Daemons of the connections PeersOf are connected by TCP.
	Peers map[uint64][]facts.Peer
	// Untold counts open FUSE devices of which the kernel does not tell the connection (below
	// about Linux 6.16).
	Untold int
	// Unread counts the processes whose open files could not all be read: any of them may serve
	// a connection. UnreadOf counts, for each connection with a process among Known, only those
	// that may be its daemon: that process, or one of the same pod or cgroup.
	Unread   int
	UnreadOf map[uint64]int
	// Blocked are the pods, or cgroup directories outside of pods, that had a thread of the walk wait
	// for an open file.
	Blocked []string
	// Cut is true when there may be more: not all processes could be read within the
	// budget, or there are more daemons than are named.
	Cut bool
}

// walkNice has a walk give way to probes (sched(7)): beside 100 volumes that hang, and that ask for walks
// all the time, a healthy one would wait for them. It is little, as a busy node must not cut a walk short.
const walkNice = 5

// processesNicely sets the niceness of all threads of the worker, which is alone in its process group and
// ends with the walk.
func processesNicely(q ProcessesQuery) (ProcessesAnswer, error) {
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, walkNice)
	return processes(q)
}

// processes walks over all processes. It reads nothing that waits for what the process
// itself waits for: cmdline, environ and maps take its mmap_lock (proc_pid_cmdline(5)),
// cgroup, comm, stat and the links do not.
func processes(q ProcessesQuery) (ProcessesAnswer, error) {
	proc, host, err := openProcfs()
	if err != nil {
		return ProcessesAnswer{}, err
	}
	defer proc.close()
	s := &scan{proc: proc, end: time.Now().Add(q.Budget)}
	return s.processes(&owners{host: host, known: map[uint64]bool{}}, q)
}

func (s *scan) processes(o *owners, q ProcessesQuery) (a ProcessesAnswer, err error) {
	if q.Daemons {
		a, err = s.daemons(q)
	} else {
		a.Containers, err = o.containers(s)
	}
	a.Cut = a.Cut || s.cut
	return a, err
}

// describe reads processes; those that have ended are left out.
func (s *scan) describe(pids []int) (found []process) {
	each(s, pids, s.processOf, func(_ int, p process, ok bool) {
		// Nothing that processOf reads can hang: this worker itself was not scheduled.
		s.cut = s.cut || !ok
		if p.PID != 0 {
			found = append(found, p)
		}
	})
	return found
}

// process is one process, as a thread of it that lives shows it.
type process struct {
	// FUSEDaemon has the process's number, start, name and cgroup. Its Connection is not set.
	facts.FUSEDaemon
	// namespace is the inode number of its mount namespace. It is 0 if unplaced: the process
	// lives, and the namespace could not be read.
	namespace uint64
	unplaced  bool
	// program is the process's name, or that of the file that it runs where gVisor gave it
	// another name.
	program string
}

// processOf reads a process; the result is zero for one that has ended.
func (s *scan) processOf(pid int) (p process) {
	read := func(dir string) (err error) {
		p, err = s.processIn(pid, dir)
		return err
	}
	err := s.proc.inThread(pid, read)
	if errors.Is(err, errUnplaced) {
		_ = read(strconv.Itoa(pid)) // its cgroup and its start are there nevertheless
	}
	switch {
	case err != nil && gone(err):
		return process{}
	case err != nil:
		p.namespace, p.unplaced = 0, true
	}
	return p
}

// processIn reads a process through dir, the directory of one of its threads: State is that
// thread's. The name and the start of the process are those of its first thread. The result is
// zero for a thread of the kernel: it is in no container, and serves no volume. Each mounted ext4
// has two, so on a node with many volumes most processes are such.
func (s *scan) processIn(pid int, dir string) (p process, err error) {
	p = process{FUSEDaemon: facts.FUSEDaemon{PID: pid}}
	first, statErr := s.stat(strconv.Itoa(pid))
	if first.kernel {
		return process{}, nil
	}
	cgroup, err := s.proc.read(dir+"/cgroup", 8<<10)
	if err != nil {
		return p, err
	}
	p.Workload = WorkloadIn(string(cgroup))
	if statErr != nil {
		return p, statErr
	}
	p.Command, p.State, p.Started = first.name, first.state, first.started
	if dir != strconv.Itoa(pid) {
		thread, err := s.stat(dir)
		if err != nil {
			return p, err
		}
		p.State = thread.state
	}
	if p.namespace, err = s.proc.namespaceOf(dir); err != nil {
		return p, err
	}
	// gVisor calls itself exe; the file that it runs has its name.
	if p.program = p.Command; p.program == "exe" && p.PodUID != "" {
		exe, _ := s.proc.readlink(dir + "/exe")
		p.program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	return p, nil
}

// stat is what the stat file of a process or thread says. Its name may hold anything, parentheses and
// newlines too. started is the time since the boot.
type stat struct {
	name    string
	state   byte
	kernel  bool
	started time.Duration
}

func (s *scan) stat(dir string) (stat, error) {
	text, err := s.proc.read(dir+"/stat", 4<<10)
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// parseStat reads a stat file (proc_pid_stat(5)), whose fields are counted from 1:
//
//	7 (sh) S 1 7 7 0 -1 4194560 103 0 0 0 0 0 0 0 20 0 1 0 4711 ...
//	   (2)(3)           (9) flags                          (22) start, in hundredths of a second
func parseStat(text []byte) (stat, error) {
	const (
		flags, startTime = 9 - 3, 22 - 3     // the third field comes first after the name
		tick             = time.Second / 100 // USER_HZ
		kernelThread     = 0x200000          // PF_KTHREAD
	)
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open >= 0 && open < end {
		if fields := strings.Fields(string(text[end+1:])); len(fields) > startTime {
			is, err := strconv.ParseUint(fields[flags], 10, 64)
			ticks, ticksErr := strconv.ParseUint(fields[startTime], 10, 64)
			if err == nil && ticksErr == nil {
				return stat{string(text[open+1 : end]), fields[0][0], is&kernelThread != 0, time.Duration(ticks) * tick}, nil
			}
		}
	}
	return stat{}, fmt.Errorf("%q is no stat of a process", text)
}
