package workerops

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// patience is how long one process may keep the scan waiting. Some of its files
// take locks that the process itself may hold while it waits for a volume: in
// execve it may close files, in mmap wait for pages.
const patience = 250 * time.Millisecond

// each works through items on a goroutine of its own, and goes on behind an
// item that does not return: ok is false for that one. The goroutine that is
// left behind ends with its item, or with this process: the worker is spent.
func each[T, R any](s *scan, items []T, work func(T) R, take func(item T, r R, ok bool)) {
	for len(items) > 0 {
		done := some(s, items, work, take)
		if items = items[done:]; len(items) == 0 {
			return
		}
		if !time.Now().Before(s.end) {
			s.answer.Cut = true
			return
		}
		var none R
		take(items[0], none, false)
		items = items[1:]
	}
}

// some gives the number of items done before one that does not return.
func some[T, R any](s *scan, items []T, work func(T) R, take func(T, R, bool)) int {
	results := make(chan R, len(items))
	var left atomic.Bool
	defer left.Store(true)
	go func() {
		for _, item := range items {
			if left.Load() {
				return
			}
			results <- work(item)
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for i, item := range items {
		timer.Reset(min(patience, time.Until(s.end)))
		select {
		case r := <-results:
			take(item, r, true)
		case <-timer.C:
			return i
		}
	}
	return len(items)
}

// read gives the start of a file of procfs.
func (s *scan) read(name string, limit int) ([]byte, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f)
	buf := make([]byte, limit)
	for n := 0; ; {
		got, err := retryEINTR(func() (int, error) { return unix.Read(f, buf[n:]) })
		if err != nil {
			return nil, err
		}
		if n += got; got == 0 || n == limit {
			return buf[:n], nil
		}
	}
}

func (s *scan) open(name string) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat(s.proc, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
}

// list gives the names in a directory of procfs.
func (s *scan) list(name string) ([]string, error) {
	fd, err := s.open(name)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// readlink gives the text of a link. Where the link is a process's directory or
// open file the kernel makes the text from names that it knows; nobody is asked.
func (s *scan) readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(s.proc, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// parentOf gives the parent of a process, 0 when it has ended.
func (s *scan) parentOf(pid int) int {
	raw, err := s.read(strconv.Itoa(pid)+"/status", 4<<10)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if v, is := strings.CutPrefix(line, "PPid:"); is {
			parent, _ := strconv.Atoi(strings.TrimSpace(v))
			return parent
		}
	}
	return 0
}

// gone is true when the process, or what it had open, has ended meanwhile.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// process is one process with what its links say.
type process struct {
	pid int
	// dir is its directory in procfs, or that of a thread where the first one
	// has ended before the others.
	dir string
	// space is its mount namespace, root its root directory there.
	space uint64
	root  string
	// threads counts them.
	threads int
	// foreign is true for one whose mount namespace is not the host's owner's: that
	// namespace is not read.
	foreign bool
}

// readLinks finds out in which mount namespace and beneath which root each
// process lives.
func (s *scan) readLinks(pids []int) {
	type seen struct {
		process
		err error
	}
	each(s, pids, func(pid int) seen {
		p, err := s.links(pid)
		return seen{p, err}
	}, func(pid int, got seen, ok bool) {
		if ok && got.err == nil && s.owners != nil {
			var owned bool
			owned, got.err = s.owners.of(s.proc, got.dir, got.space)
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

func (s *scan) links(pid int) (process, error) {
	p := process{pid: pid, dir: strconv.Itoa(pid)}
	var task unix.Stat_t
	if err := unix.Fstatat(s.proc, p.dir+"/task", &task, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return p, err
	}
	p.threads = int(task.Nlink) - 2
	// A kernel thread runs no program and has nothing open; neither does a
	// process whose threads have all ended.
	_, err := s.readlink(p.dir + "/exe")
	if errors.Is(err, unix.ENOENT) {
		if p.threads <= 1 {
			return p, err
		}
		p.dir = s.livingThread(p)
	}
	if p.space, err = s.namespaceOf(p.dir); err != nil {
		return p, err
	}
	p.root, err = s.readlink(p.dir + "/root")
	return p, err
}

// namespaceOf gives the inode number of the mount namespace that a process is in.
func (s *scan) namespaceOf(dir string) (uint64, error) {
	link, err := s.readlink(dir + "/ns/mnt")
	if err != nil {
		return 0, err
	}
	return mount.InodeOf(link)
}

// livingThread gives the directory of a thread that goes on although the first
// one of its process has ended.
func (s *scan) livingThread(p process) string {
	tids, err := s.list(p.dir + "/task")
	if err != nil {
		return p.dir
	}
	for _, tid := range tids {
		if dir := p.dir + "/task/" + tid; tid != strconv.Itoa(p.pid) {
			if _, err := s.readlink(dir + "/ns/mnt"); err == nil {
				return dir
			}
		}
	}
	return p.dir
}

// swaps gives the paths of swap files and devices (proc_swaps(5)).
func (s *scan) swaps() (paths []string) {
	raw, _ := s.read("swaps", 64<<10)
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.HasPrefix(fields[0], "/") {
			paths = append(paths, strings.TrimSuffix(mount.Unescape(fields[0]), " (deleted)"))
		}
	}
	return paths
}
