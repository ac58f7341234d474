package workerops

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// namespace is a mount namespace that has the host's owner, with a part of its
// mount table.
type namespace struct {
	file  *os.File
	table []mountinfo.Entry
}

func closeAll(namespaces []namespace) {
	for _, ns := range namespaces {
		_ = ns.file.Close()
	}
}

// ownedNamespaces opens the mount namespaces that have the host's owner, our own
// too: kubelet's root may be mounted twice on the host. Of their tables it gives
// what may receive the mount events of the given mounts, and what stands on that.
// It is all or an error: nothing is decided by a part.
func ownedNamespaces(of ...MountRef) (found []namespace, err error) {
	asked := func(e mountinfo.Entry) bool {
		return slices.ContainsFunc(of, func(m MountRef) bool { return m.OldID == e.ID })
	}
	devs := map[string]bool{}
	err = self{}.table(func(e mountinfo.Entry) {
		if asked(e) {
			devs[e.Dev] = true
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(found)
			found, err = nil, fmt.Errorf("%w: the mount namespaces on this node could not be looked at: %w", worker.ErrRefused, err)
		}
	}()
	w, err := newNamespaceWalk()
	if err != nil {
		return nil, err
	}
	defer unix.Close(w.proc)
	s := scan{proc: w.proc}
	names, err := s.list(".")
	if err != nil {
		return nil, err
	}
	seen := map[uint64]bool{}
	// A process that lives in a directory of its namespace shows only what is mounted
	// beneath that: it is asked where no other one is.
	for _, chrooted := range []bool{false, true} {
		for _, name := range names {
			if _, err := strconv.Atoi(name); err != nil {
				continue
			}
			inode, err := s.namespaceOf(name)
			if err != nil || seen[inode] {
				continue // the process has ended
			}
			root, err := s.readlink(name + "/root")
			if err != nil || !path.IsAbs(root) || (root != "/") != chrooted {
				continue
			}
			ns, err := w.open(name, root, inode, func(e mountinfo.Entry) bool {
				return asked(e) || devs[e.Dev] && (shared(e) != "" || optional(e, "master:") != "")
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

type namespaceWalk struct {
	proc   int
	owners *owners
	left   mountsLeft
}

func newNamespaceWalk() (*namespaceWalk, error) {
	owners, err := newOwners()
	if err != nil {
		return nil, err
	}
	proc, err := openDir("/proc")
	return &namespaceWalk{proc: proc, owners: owners}, err
}

// open opens the namespace of a process that has this root directory there. It is empty if that has another owner, or
// nothing to do with the superblocks.
func (w *namespaceWalk) open(process, root string, inode uint64, receives func(mountinfo.Entry) bool) (ns namespace, err error) {
	owned, err := w.owners.of(w.proc, process, inode)
	if err != nil || !owned {
		return ns, err
	}
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(w.proc, process+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return ns, err
	}
	file := os.NewFile(uintptr(fd), "mnt")
	defer func() {
		if ns.file == nil {
			_ = file.Close()
		}
	}()
	var table []mountinfo.Entry
	err = w.left.readTable(w.proc, process, inode, func(e mountinfo.Entry) error {
		e.Path = path.Join(root, e.Path)
		table = append(table, e)
		return nil
	})
	if err != nil {
		return ns, err
	}
	// What is known of an inode number, and what was read of the process, is of this
	// namespace only if the process still is in it.
	now, err := (&scan{proc: w.proc}).namespaceOf(process)
	if err != nil || now != inode || !isInode(fd, inode) || !w.owners.host.owns(fd) {
		return ns, errEnded
	}
	if ns.table = related(table, receives); len(ns.table) > 0 {
		ns.file = file
	}
	return ns, nil
}

// related keeps the mounts that receive events, and what stands on those.
func related(table []mountinfo.Entry, receives func(mountinfo.Entry) bool) (kept []mountinfo.Entry) {
	known := map[int]bool{}
	for _, e := range table {
		known[e.ID] = receives(e)
	}
	for _, e := range table {
		if known[e.ID] || known[e.Parent] {
			kept = append(kept, e)
		}
	}
	return kept
}
