package ops

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ContainersQuery asks which containers run.
type ContainersQuery struct {
	// Budget bounds the walk over all processes.
	Budget time.Duration
}

// ContainersAnswer lists the containers, and all other processes in a mount namespace
// other than the host's, by cgroup directory.
type ContainersAnswer struct {
	Containers []facts.Container
	// Cut is true when not all processes could be read within the budget.
	Cut bool
}

// containers walks over all processes. It reads nothing that waits for what the
// process itself waits for: cmdline, environ and maps take its mmap_lock
// (proc_pid_cmdline(5)), cgroup, comm, stat and the links do not.
func containers(q ContainersQuery) (ContainersAnswer, error) {
	host, err := mount.OwnOwner()
	if err != nil {
		return ContainersAnswer{}, err
	}
	proc, err := openProcfs()
	if err != nil {
		return ContainersAnswer{}, err
	}
	defer proc.close()
	o := owners{host: host, known: map[uint64]bool{}}
	return o.containers(proc, q.Budget)
}

func (o *owners) containers(proc procfs, budget time.Duration) (ContainersAnswer, error) {
	s := newScan(proc)
	s.end = time.Now().Add(budget)
	pids, err := s.whoRuns()
	if err != nil {
		return ContainersAnswer{}, err
	}
	home, err := s.proc.namespaceOf("thread-self")
	if err != nil {
		return ContainersAnswer{}, fmt.Errorf("our own mount namespace: %w", err)
	}
	byDir := map[string][]member{}
	each(s, pids, s.memberOf, func(_ int, m member, ok bool) {
		// Nothing that is read of it can hang: this worker was not scheduled.
		s.cut = s.cut || !ok
		if ok && (m.Namespace != 0 || m.Unplaced && m.PodUID != "") {
			byDir[m.Dir] = append(byDir[m.Dir], m)
		}
	})
	a := ContainersAnswer{Cut: s.cut}
	for _, members := range byDir {
		if c, found := o.container(proc, members, home); found {
			a.Containers = append(a.Containers, c)
		}
	}
	slices.SortFunc(a.Containers, func(a, b facts.Container) int { return cmp.Compare(a.Dir, b.Dir) })
	return a, nil
}

// member is one process of a cgroup directory.
type member struct {
	// Container is what it would be alone. Namespace is 0 for a process that has ended, or
	// is unplaced.
	facts.Container
	program string
}

func (s *scan) memberOf(pid int) (m member) {
	read := func(dir string) (err error) {
		m, err = s.memberIn(pid, dir)
		return err
	}
	err := s.proc.inThread(pid, read)
	if errors.Is(err, errUnplaced) {
		_ = read(strconv.Itoa(pid)) // its cgroup and its start are there nevertheless
	}
	if m.Unplaced = err != nil && !gone(err); err != nil {
		m.Namespace = 0
	}
	return m
}

// memberIn reads a process through the directory of one of its threads. The name and the
// start of the process are those of the first one.
func (s *scan) memberIn(pid int, dir string) (m member, err error) {
	cgroup, err := s.proc.read(dir+"/cgroup", 8<<10)
	if err != nil {
		return m, err
	}
	stat, err := s.proc.read(strconv.Itoa(pid)+"/stat", 4<<10)
	if err != nil {
		return m, err
	}
	name, started, ok := parseStat(stat)
	if !ok {
		return m, fmt.Errorf("%q is no stat of a process", stat)
	}
	m = member{Container: facts.Container{Workload: WorkloadIn(string(cgroup)), PID: pid, Started: sinceBoot(started)}, program: name}
	if m.Namespace, err = s.proc.namespaceOf(dir); err != nil {
		return m, err
	}
	// gVisor calls itself exe; the file that it runs has its name.
	if name == "exe" && m.PodUID != "" {
		exe, _ := s.proc.readlink(dir + "/exe")
		m.program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	return m, nil
}

// parseStat reads the name and the start time of a process from its stat file
// (proc_pid_stat(5)). The name may hold anything, parentheses and newlines too.
func parseStat(stat []byte) (name string, started uint64, ok bool) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", 0, false
	}
	const startTime = 22 - 3 // fields are counted from 1, and the third comes first here
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= startTime {
		return "", 0, false
	}
	started, err := strconv.ParseUint(fields[startTime], 10, 64)
	return string(stat[open+1 : end]), started, err == nil
}

// sandboxes are the programs that run containers on a kernel of their own (Kata
// Containers with its hypervisors, gVisor), as the kernel shows them: cut after
// 15 bytes.
var sandboxes = []string{
	"qemu-system-", "cloud-hyperviso", "firecracker", "stratovirt", "dragonball", "virtiofsd", "nydusd",
	"runsc-sandbox", "runsc-gofer", "runsc",
}

// sandbox names the program of a process, if that belongs to a sandbox.
func (m member) sandbox() string {
	for _, s := range sandboxes {
		if m.program == s || strings.HasSuffix(s, "-") && strings.HasPrefix(m.program, s) {
			return s
		}
	}
	return ""
}

// container says what the processes of one cgroup directory are. home is the inode
// number of the host's mount namespace.
func (o *owners) container(proc procfs, members []member, home uint64) (c facts.Container, found bool) {
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(a.PID, b.PID))
	})
	c = facts.Container{Workload: members[0].Workload, Started: members[0].Started}
	c.Pause = len(members) == 1 && members[0].program == "pause"
	c.Unplaced = slices.ContainsFunc(members, func(m member) bool { return m.Unplaced })
	for i, m := range members {
		// Any process of a container may have any name, but for its first one, and for
		// what stays in the host's mount namespace: Kata's shim is older than the
		// hypervisor beside it. Where there is no container id, only the runtime itself
		// puts processes.
		if m.PodUID != "" && (i == 0 || m.ContainerID == "" || m.Namespace == home) {
			c.Sandbox = cmp.Or(c.Sandbox, m.sandbox())
		}
	}
	if c.Sandbox != "" {
		return c, true
	}
	for _, m := range members {
		if m.Unplaced {
			continue
		}
		owned := false
		err := proc.inThread(m.PID, func(dir string) (err error) {
			owned, err = o.of(proc, dir, m.Namespace)
			return err
		})
		switch {
		case err != nil:
			c.Unplaced = c.Unplaced || !gone(err) && m.PodUID != ""
		case !owned:
			c.Foreign = true
		case (c.Foreign || c.Unplaced) && m.Namespace == home: // the runtime, on its way into the container
		case m.Namespace == home:
			return c, false
		default:
			c.Foreign, c.PID, c.Namespace = false, m.PID, m.Namespace
			return c, true
		}
	}
	return c, c.Foreign || c.Unplaced
}
