package workerops

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// namespace is a mount namespace that has the host's owner, with a part of its
// mount table.
type namespace struct {
	file  *os.File
	table []mount.Mount
}

func closeAll(namespaces []namespace) {
	for _, ns := range namespaces {
		_ = ns.file.Close()
	}
}

// tablesOf returns the mounts of all namespaces.
func tablesOf(namespaces []namespace) (all []mount.Mount) {
	for _, ns := range namespaces {
		all = append(all, ns.table...)
	}
	return all
}

// receiversReadable fails where the mounts that receive the events of a mount cannot be
// read.
func receiversReadable(m mount.Ref) error {
	namespaces, err := ownedNamespaces(m)
	closeAll(namespaces)
	return err
}

// ownedNamespaces opens the mount namespaces that have the host's owner, our own
// too: kubelet's root may be mounted twice on the host. Of their tables it returns
// what may receive the mount events of the given mounts, and what is mounted on that.
// It returns all of them or an error: nothing is decided by a part.
func ownedNamespaces(of ...mount.Ref) (found []namespace, err error) {
	asked := func(e mount.Mount) bool {
		return slices.ContainsFunc(of, func(m mount.Ref) bool { return m.OldID == e.OldID })
	}
	devs, err := superblocksOf(asked)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(found)
			found, err = nil, fmt.Errorf("%w: the mount namespaces on this node could not be read: %w", worker.ErrRefused, err)
		}
	}()
	w, err := newNamespaceWalk()
	if err != nil {
		return nil, err
	}
	defer w.proc.close()
	pids, err := w.proc.pids()
	if err != nil {
		return nil, err
	}
	seen := map[uint64]bool{}
	// A process with another root directory shows only what is mounted beneath that: it
	// is asked where there is no other process.
	for _, chrooted := range []bool{false, true} {
		for _, pid := range pids {
			name := strconv.Itoa(pid)
			inode, err := w.proc.namespaceOf(name)
			if err != nil || seen[inode] {
				continue // the process has ended
			}
			root, err := w.proc.readlink(name + "/root")
			if err != nil || !path.IsAbs(root) || (root != "/") != chrooted {
				continue
			}
			ns, err := w.open(name, root, inode, func(e mount.Mount) bool {
				return asked(e) || devs[e.Dev] && e.Propagation.Receives()
			})
			switch {
			case errors.Is(err, errEnded), err != nil && gone(err), errors.Is(err, unix.EINVAL):
				continue // ask the next process in it
			case err != nil:
				return found, err
			}
			if seen[inode] = true; ns.file != nil {
				found = append(found, ns)
			}
		}
	}
	return found, nil
}

// superblocksOf returns the superblocks of the mounts of the thread's namespace that are
// asked for.
func superblocksOf(asked func(mount.Mount) bool) (map[mount.Dev]bool, error) {
	devs := map[mount.Dev]bool{}
	err := thread{}.visit(func(m mount.Mount) {
		if asked(m) {
			devs[m.Dev] = true
		}
	})
	return devs, err
}

type namespaceWalk struct {
	proc   procfs
	owners *owners
	left   mountsLeft
}

func newNamespaceWalk() (*namespaceWalk, error) {
	owners, err := newOwners()
	if err != nil {
		return nil, err
	}
	proc, err := openProcfs()
	return &namespaceWalk{proc: proc, owners: owners}, err
}

// open opens the namespace of a process that has this root directory there. The result
// is empty if that has another owner, or no mount that receives.
func (w *namespaceWalk) open(process, root string, inode uint64, receives func(mount.Mount) bool) (ns namespace, err error) {
	owned, err := w.owners.of(w.proc, process, inode)
	if err != nil || !owned {
		return ns, err
	}
	fd, err := w.proc.openNamespace(process)
	if err != nil {
		return ns, err
	}
	file := os.NewFile(uintptr(fd), "mnt")
	defer func() {
		if ns.file == nil {
			_ = file.Close()
		}
	}()
	var table []mount.Mount
	err = w.left.readTable(w.proc, process, inode, func(e mount.Mount) error {
		e.Path = path.Join(root, e.Path)
		table = append(table, e)
		return nil
	})
	if err != nil {
		return ns, err
	}
	// What is known of an inode number, and what was read of the process, is true of this
	// namespace only if the process is still in it.
	now, err := w.proc.namespaceOf(process)
	if err != nil || now != inode || !mount.IsInode(fd, inode) || !w.owners.host.Owns(fd) {
		return ns, errEnded
	}
	if ns.table = related(table, receives); len(ns.table) > 0 {
		ns.file = file
	}
	return ns, nil
}

// related returns the mounts that receive events, and what is mounted on those.
func related(table []mount.Mount, receives func(mount.Mount) bool) (kept []mount.Mount) {
	known := map[int]bool{}
	for _, e := range table {
		known[e.OldID] = receives(e)
	}
	for _, e := range table {
		if known[e.OldID] || known[e.OldParent] {
			kept = append(kept, e)
		}
	}
	return kept
}

// owners remembers which mount namespaces have the host's owner.
type owners struct {
	host  mount.Owner
	known map[uint64]bool // by inode number
}

func newOwners() (*owners, error) {
	host, err := mount.OwnOwner()
	return &owners{host: host, known: map[uint64]bool{}}, err
}

// of reports whether the namespace that a process, given by its directory in an open
// procfs, is in has the host's owner. An error says that it is in that one no more.
func (o *owners) of(proc procfs, dir string, inode uint64) (bool, error) {
	if owned, known := o.known[inode]; known {
		return owned, nil
	}
	fd, err := proc.openNamespace(dir)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if !mount.IsInode(fd, inode) {
		return false, errEnded
	}
	o.known[inode] = o.host.Owns(fd)
	return o.known[inode], nil
}
