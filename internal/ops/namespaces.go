package ops

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// namespace is a mount namespace whose owning user namespace is the host's, with a part of its
// mount table.
type namespace struct {
	file *os.File
	// home is true for the one that the thread began in: the host's.
	home  bool
	table []facts.Mount
	// pid is the first process that was found in the namespace, cgroup the text of the
	// process's cgroup file.
	pid    int
	cgroup string
}

func closeAll(namespaces []namespace) {
	for _, ns := range namespaces {
		_ = ns.file.Close()
	}
}

func tablesOf(namespaces []namespace) (all []facts.Mount) {
	for _, ns := range namespaces {
		all = append(all, ns.table...)
	}
	return all
}

// ownedNamespaces opens the mount namespaces whose owner is the host's, the host's own among
// them: kubelet's root may be mounted twice on the host. Of their tables it returns the given
// mounts, the mounts that may receive the mount events of those, and what is mounted on all these:
// what an umount on one of the given mounts may take.
func ownedNamespaces(of ...facts.Ref) (found []namespace, err error) {
	asked := func(e facts.Mount) bool {
		return slices.ContainsFunc(of, func(m facts.Ref) bool { return m.OldID == e.OldID })
	}
	devs := map[facts.Dev]bool{}
	err = thread{}.visit(func(m facts.Mount) {
		if asked(m) {
			devs[m.Dev] = true
		}
	})
	if err != nil {
		return nil, err
	}
	return readNamespaces(func(table []facts.Mount) (kept []facts.Mount) {
		receives := map[int]bool{}
		for _, e := range table {
			receives[e.OldID] = asked(e) || devs[e.Dev] && e.Propagation.Receives()
		}
		for _, e := range table {
			if receives[e.OldID] || receives[e.OldParent] {
				kept = append(kept, e)
			}
		}
		return kept
	})
}

// readNamespaces opens the mount namespaces whose owner is the host's and in whose table keep
// finds something. It returns all of them or an error: what is not seen may be unmounted, or its
// FUSE connection aborted. A living process whose namespace cannot be told is an error, too.
//
// The calling thread enters the namespaces one after the other, and comes back: mountinfo of a
// process ends at that process's root directory, which the process chooses.
func readNamespaces(keep func(table []facts.Mount) []facts.Mount) (found []namespace, err error) {
	runtime.LockOSThread() // for good: operation.EnterMounts gives the thread a root directory of its own
	proc, host, err := openProcfs()
	if err != nil {
		return nil, err
	}
	defer proc.close()
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	dir, err := os.Open("/proc/thread-self")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w := &namespaceWalk{keep: keep, proc: proc, host: host, home: home, thread: thread{dir}, seen: map[uint64]bool{}}
	defer func() {
		if back := operation.EnterMounts(home); back != nil {
			err = errors.Join(err, fmt.Errorf("come back: %w", back))
		}
		if err != nil {
			closeAll(found)
			found, err = nil, fmt.Errorf("%w: the mount namespaces on this node could not be read: %w", operation.ErrRefused, err)
		}
	}()
	pids, err := w.proc.pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		ns, err := w.read(pid)
		switch {
		case err != nil && (gone(err) || pid == initPID):
		case err != nil:
			return found, fmt.Errorf("process %d: %w", pid, err)
		case ns.file != nil:
			found = append(found, ns)
		}
	}
	return found, nil
}

// namespaceWalk enters mount namespaces with the calling thread.
type namespaceWalk struct {
	keep   func(table []facts.Mount) []facts.Mount
	proc   procfs
	host   mount.Owner
	home   *os.File
	thread thread
	// seen are the inode numbers of the namespaces that were read, and of those with
	// another owner; count the mounts that were read.
	seen  map[uint64]bool
	count int
}

// read opens the namespace of a process. The result is empty if that namespace was read before,
// has another owner, or nothing to keep.
func (w *namespaceWalk) read(pid int) (ns namespace, err error) {
	if inode, err := w.proc.namespaceOf(strconv.Itoa(pid)); err == nil && w.seen[inode] {
		return ns, nil
	}
	fd, err := w.proc.openNamespaceOf(pid)
	if err != nil {
		return ns, err
	}
	file := os.NewFile(uintptr(fd), "mnt")
	defer func() {
		if ns.file == nil {
			_ = file.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ns, err
	}
	if w.seen[st.Ino] {
		return ns, nil
	}
	owned, err := w.host.Owns(fd)
	if err != nil {
		return ns, err
	}
	var table []facts.Mount
	if owned {
		if table, err = w.table(file); err != nil {
			return ns, err
		}
	}
	w.seen[st.Ino] = true
	if table = w.keep(table); len(table) == 0 {
		return ns, nil
	}
	ns = namespace{file: file, home: mount.IsInode(int(w.home.Fd()), st.Ino), table: table, pid: pid}
	// Without its text the namespace counts as that of no pod.
	_ = w.proc.inThread(pid, func(dir string) error {
		cgroup, err := w.proc.read(dir+"/cgroup", 8<<10)
		ns.cgroup = string(cgroup)
		return err
	})
	return ns, nil
}

func (w *namespaceWalk) table(namespace *os.File) (table []facts.Mount, err error) {
	if err := operation.EnterMounts(namespace); err != nil {
		return nil, err
	}
	err = w.thread.visit(func(m facts.Mount) {
		if w.count++; w.count <= maxMountsInAll {
			table = append(table, m)
		}
	})
	if err == nil && w.count > maxMountsInAll {
		err = errTooManyMounts
	}
	return table, err
}
