package workerops

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is one process with what its links say.
type process struct {
	pid int
	// dir is its directory in procfs.
	dir string
	// namespace is its mount namespace, root its root directory there.
	namespace uint64
	root      string
	// foreign is true when that namespace has another owner than the host's: its
	// mounts are not read.
	foreign bool
}

// readProcesses finds out in which mount namespace and beneath which root each
// process lives.
func (s *scan) readProcesses(pids []int) {
	type result struct {
		process
		err error
	}
	each(s, pids, func(pid int) result {
		p, err := s.processOf(pid)
		return result{p, err}
	}, func(pid int, got result, ok bool) {
		if ok && got.err == nil && s.owners != nil {
			var owned bool
			owned, got.err = s.owners.of(s.proc, got.dir, got.namespace)
			got.foreign = !owned
		}
		switch {
		case ok && got.err == nil:
			s.processes = append(s.processes, got.process)
		case !ok || !gone(got.err):
			s.unseen[pid] = true
		}
	})
}

// errThreadsLeft says that the first thread of a process has ended before others.
// Its directory in procfs then shows no open files.
var errThreadsLeft = errors.New("the first thread has ended")

func (s *scan) processOf(pid int) (process, error) {
	p := process{pid: pid, dir: strconv.Itoa(pid)}
	// A kernel thread runs no program and has nothing open; neither does a process
	// whose threads have all ended.
	_, err := s.proc.readlink(p.dir + "/exe")
	if errors.Is(err, unix.ENOENT) {
		var task unix.Stat_t
		if e := unix.Fstatat(int(s.proc), p.dir+"/task", &task, unix.AT_SYMLINK_NOFOLLOW); e == nil && task.Nlink > 3 {
			return p, errThreadsLeft // a directory has 2 links, and 1 for each thread
		}
		return p, err
	}
	if p.namespace, err = s.proc.namespaceOf(p.dir); err != nil {
		return p, err
	}
	p.root, err = s.proc.readlink(p.dir + "/root")
	return p, err
}
