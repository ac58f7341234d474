package workerops

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// A mount that is put under a shared parent, as kubelet's directories are,
// appears in every mount namespace that shares them: those of CSI drivers and
// of agents that watch the node. mount_setattr does not propagate, so the
// copies would keep the placeholder attributes for ever. They are set one by one.

// elsewhere holds the copies of one mount, each by a descriptor: what is mounted
// on top of one later does not hide it. All work on them happens on one thread
// of its own, which wanders through the namespaces and may get lost in one.
type propagatedMounts struct {
	jobs chan func()
	// budget bounds each job: the way to a copy may lead through a filesystem
	// that hangs, and the volume itself is not to wait for it.
	budget time.Duration
	lost   bool
	list   []copied
	// missed counts the copies that could not be opened.
	missed int
}

type copied struct {
	namespace *os.File
	fd        int
}

// newPropagatedMounts finds and opens the copies of a mount.
func newPropagatedMounts(m, parentMount MountRef, budget time.Duration) *propagatedMounts {
	e := &propagatedMounts{jobs: make(chan func()), budget: budget}
	go func() {
		// The worker is spent afterwards, and this thread with it.
		runtime.LockOSThread()
		for job := range e.jobs {
			job()
		}
	}()
	e.do(func() {
		if err := e.find(m, parentMount); err != nil {
			e.missed++
		}
	})
	return e
}

// do runs a job on the thread, and gives up on it after a while.
func (e *propagatedMounts) do(job func()) {
	if e.lost {
		return
	}
	done := make(chan struct{})
	e.jobs <- func() { job(); close(done) }
	select {
	case <-done:
	case <-time.After(e.budget):
		e.lost = true
	}
}

// set gives all copies the attributes. It counts those that do not have them now;
// -1 means that it took too long.
func (e *propagatedMounts) set(attr *unix.MountAttr) (left int) {
	e.do(func() {
		left = e.missed
		for _, c := range e.list {
			// mount_setattr(2) takes only mounts of the caller's namespace.
			err := unix.Setns(int(c.namespace.Fd()), unix.CLONE_NEWNS)
			if err == nil {
				err = unix.MountSetattr(c.fd, "", unix.AT_EMPTY_PATH, attr)
			}
			if err != nil {
				left++
			}
		}
	})
	if e.lost {
		return -1
	}
	return left
}

func (e *propagatedMounts) find(m, parentMount MountRef) error {
	namespaces, err := ownedNamespaces(m, parentMount)
	if err != nil {
		return err
	}
	wanted, err := propagatedFrom(namespaces, m, parentMount)
	if err != nil || wanted.groups == nil {
		closeAll(namespaces)
		return err
	}
	// setns into a mount namespace needs a thread whose root and working
	// directory are its own (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	for _, ns := range namespaces {
		entries := wanted.among(ns.table)
		if len(entries) == 0 {
			_ = ns.file.Close()
			continue
		}
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNS); err != nil {
			e.missed += len(entries)
			continue
		}
		for _, entry := range entries {
			fd, err := openMount(entry)
			switch {
			case errors.Is(err, worker.ErrRefused): // covered by another one, which is not ours to move
			case err != nil:
				e.missed++
			default:
				e.list = append(e.list, copied{namespace: ns.file, fd: fd})
			}
		}
	}
	return nil
}

// propagated says which mounts are copies of one that was just placed. A mount
// that somebody bound from it, such as a container that started meanwhile, is
// in the same peer group and has a life of its own; a copy stands where the
// kernel put it: at the same directory of a mount that shares the events of the
// one below.
type propagated struct {
	self int // the placed mount
	// groups are the peer groups of the mount and of those that follow it,
	// grounds the same for the mount below the mount point.
	groups, grounds map[string]bool
	// at is the mount point as a directory of the filesystem below.
	at string
}

// propagatedFrom describes the copies of a mount. Without a peer group on
// either level there are none, and groups stays nil.
func propagatedFrom(namespaces []namespace, m, parentMount MountRef) (propagated, error) {
	var all []mountinfo.Entry
	for _, ns := range namespaces {
		all = append(all, ns.table...)
	}
	p := propagated{self: m.OldID}
	var ours, below mountinfo.Entry
	for _, e := range all {
		switch e.ID {
		case m.OldID:
			ours = e
		case parentMount.OldID:
			below = e
		}
	}
	if ours.ID == 0 || below.ID == 0 {
		return p, refuse("%s is no longer in the mount table", m)
	}
	p.at = path.Join(below.Root, strings.TrimPrefix(ours.Path, below.Path))
	if group, parentMount := shared(ours), shared(below); group != "" && parentMount != "" {
		p.groups, p.grounds = followers(all, group), followers(all, parentMount)
	}
	return p, nil
}

// followers gives the peer groups that receive the events of one: a slave that
// is shared hands them on.
func followers(all []mountinfo.Entry, group string) map[string]bool {
	groups := map[string]bool{group: true}
	for grown := true; grown; {
		grown = false
		for _, e := range all {
			if g := shared(e); g != "" && !groups[g] && groups[optional(e, "master:")] {
				groups[g], grown = true, true
			}
		}
	}
	return groups
}

func shared(e mountinfo.Entry) string { return optional(e, "shared:") }

func optional(e mountinfo.Entry, key string) string {
	for _, f := range e.Optional {
		if v, found := strings.CutPrefix(f, key); found {
			return v
		}
	}
	return ""
}

// among finds the copies in a mount table.
func (p propagated) among(entries []mountinfo.Entry) []mountinfo.Entry {
	byID := make(map[int]mountinfo.Entry, len(entries))
	for _, e := range entries {
		byID[e.ID] = e
	}
	receives := func(e mountinfo.Entry, groups map[string]bool) bool {
		return groups[shared(e)] || groups[optional(e, "master:")]
	}
	var found []mountinfo.Entry
	for _, e := range entries {
		below, known := byID[e.Parent]
		if e.ID == p.self || !known || !receives(e, p.groups) || !receives(below, p.grounds) {
			continue
		}
		if path.Join(below.Root, strings.TrimPrefix(e.Path, below.Path)) == p.at {
			found = append(found, e)
		}
	}
	return found
}

// openMount opens a mount of the mount table, if it is topmost at its path. It
// follows no link there.
func openMount(e mountinfo.Entry) (int, error) {
	l, err := openLeaf(e.Path)
	if err != nil {
		return -1, err
	}
	defer l.close()
	fd, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(l.dir, l.name, unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err != nil {
		return -1, err
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && int(st.Mnt_id) != e.ID {
		err = refuse("something else is mounted on it")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
