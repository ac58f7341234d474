package ops

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// procfs is a descriptor of the directory /proc.
type procfs int

// openProcfs also returns the owner of the host's mount namespace, which the calling thread is in.
func openProcfs() (p procfs, host mount.Owner, err error) {
	if host, err = mount.OwnOwner(); err != nil {
		return -1, host, err
	}
	fd, err := openDir("/proc")
	if err != nil {
		return -1, host, fmt.Errorf("procfs: %w", err)
	}
	return procfs(fd), host, nil
}

func (p procfs) close() { _ = unix.Close(int(p)) }

// pids lists the processes in ascending order, by the numbers of procfs: those of the pid
// namespace in which it was mounted, which may be another one than the worker's.
func (p procfs) pids() ([]int, error) {
	names, err := p.list(".")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// read returns up to limit bytes of a file of a process that the kernel tells all at once: of stat,
// status, cgroup, cmdline and fdinfo, and not of maps or mountinfo, which have records.
func (p procfs) read(name string, limit int) ([]byte, error) {
	f, err := p.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f)
	buf := make([]byte, limit)
	n, err := mount.RetryEINTR(func() (int, error) { return unix.Read(f, buf) })
	return buf[:max(n, 0)], err
}

func (p procfs) open(name string) (int, error) {
	return mount.Open(int(p), name, unix.O_RDONLY|unix.O_NOFOLLOW)
}

func (p procfs) list(name string) ([]string, error) {
	fd, err := p.open(name)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// readlink returns the text of a link. The text of a process's directory or open
// file is made of names that the kernel has in memory; no filesystem is asked.
func (p procfs) readlink(name string) (string, error) { return readlinkAt(int(p), name) }

func readlinkAt(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// initPID is the first process. A security module may forbid to examine it; it is in the
// host's mount namespace and serves no volume.
const initPID = 1

// errUnplaced says that a process lives, and that none of its threads could be read.
var errUnplaced = errors.New("it lives, and none of its threads can be read")

// threadTries bounds how often a thread of one process is looked for: a process may start
// and end threads as fast as they are listed.
const threadTries = 100

// inThread calls read with the directory in procfs of a living thread of a process: that of the
// first thread, which is the process's own, or where the first thread has ended that of another
// one. Any program may end its first thread and go on. /proc/<pid>/fd and ns, and the links exe
// and root, are then as empty as if the process had nothing open and no mount namespace: a
// daemon would pass for dead, a container for gone. /proc/<pid>/task/<tid> of a living thread
// shows all of it.
//
// read is called again where the thread had ended, or ended meanwhile. The error is one of gone
// when the process has ended, errUnplaced when it lives and no thread could be read, else that of
// read.
func (p procfs) inThread(pid int, read func(dir string) error) error {
	dir := strconv.Itoa(pid)
	for range threadTries {
		err := read(dir)
		if p.lives(dir) {
			return err
		}
		if dir, err = p.livingThread(strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return errUnplaced
}

// livingThread returns the directory of a living thread of a process whose first one has ended. A
// thread that is listed and has no mount namespace has ended: the kernel closes a thread's files
// before it takes the namespace (do_exit), and the thread may stay listed, as until it is reaped.
// The process itself has ended when a list has no thread that was not in an earlier one: a living
// thread may have been started by one that ended since the earlier list. The kernel lists the newest
// thread last, and that is looked at first: a process may keep thousands of ended ones listed with
// ptrace(2), and pass on its life from one thread to the next while those are looked at.
func (p procfs) livingThread(process string) (dir string, err error) {
	listed := map[string]bool{}
	for range threadTries {
		threads, err := p.list(process + "/task")
		if err != nil {
			return "", err
		}
		before := len(listed)
		for _, thread := range slices.Backward(threads) {
			if dir = process + "/task/" + thread; p.lives(dir) {
				return dir, nil
			}
			listed[thread] = true
		}
		if len(listed) == before {
			return "", unix.ESRCH
		}
	}
	return "", errUnplaced
}

// lives reports whether a thread has a mount namespace, which it has until it ends. A thread
// whose directory may not be read (EACCES) lives.
func (p procfs) lives(dir string) bool {
	_, err := p.readlink(dir + "/ns/mnt")
	return err == nil || !gone(err)
}

// namespaceOf returns the inode number of the mount namespace that a thread is in.
func (p procfs) namespaceOf(dir string) (uint64, error) {
	link, err := p.readlink(dir + "/ns/mnt")
	if err != nil {
		return 0, err
	}
	return mount.InodeOf(link)
}

// openNamespace opens the mount namespace that a thread is in.
func (p procfs) openNamespace(dir string) (int, error) {
	return mount.Open(int(p), dir+"/ns/mnt", unix.O_RDONLY)
}

// openNamespaceOf opens the mount namespace that a process is in.
func (p procfs) openNamespaceOf(pid int) (fd int, err error) {
	fd = -1
	err = p.inThread(pid, func(dir string) (err error) {
		if fd < 0 {
			fd, err = p.openNamespace(dir)
		}
		return err
	})
	if err != nil && fd >= 0 { // the process has ended since
		_ = unix.Close(fd)
	}
	return fd, err
}

// field returns the value of a line such as "mnt_id:\t29" of a status or fdinfo file, "" for none.
func field(text []byte, name string) string {
	for line := range bytes.Lines(text) {
		if key, value, _ := bytes.Cut(line, []byte(":")); string(key) == name {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// gone reports whether the error says that the process, or what it had open, has ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }
