package touch

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch/mountinfo"
)

// A mount that is put under a shared parent, as kubelet's directories are,
// appears in every mount namespace that shares them: those of CSI drivers and
// of agents that watch the node. mount_setattr does not propagate, so the
// copies would keep the interim attributes for ever. They are set one by one,
// before the mount itself: a kill in between leaves the interim mount at the
// place, and the next call does all of them again.

// propagated says which mounts are copies of one that was just placed. A mount
// that somebody bound from it, such as a container that started meanwhile, is
// in the same peer group and has a life of its own; a copy stands where the
// kernel put it: at the same directory of a mount that shares the events of the
// one below.
type propagated struct {
	self   int    // the placed mount
	group  string // its peer group
	ground string // the peer group of the mount below the place
	// at is the place as a directory of the filesystem below.
	at string
}

// copies holds the copies of one mount, each by a descriptor: what is mounted on
// top of one later does not hide it.
type copies struct {
	own  *os.File // the namespace to return to
	list []copied
	// missed counts those that could not be opened.
	missed int
}

type copied struct {
	namespace *os.File
	fd        int
}

// findCopies opens all copies of the mount at the leaf. When it fails, the
// thread may be left in another mount namespace; it is for workers that are
// spent.
func (l leaf) findCopies(m, ground MountRef) (*copies, error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	c := &copies{own: own}
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return c, fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(proc)
	wanted, err := propagatedFrom(proc, m, ground)
	if err != nil || wanted.group == "" || wanted.ground == "" {
		return c, err
	}
	namespaces, err := allNamespaces()
	if err != nil {
		return c, err
	}
	// setns into a mount namespace needs a thread whose root and working
	// directory are its own (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return c, fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	for _, ns := range namespaces {
		fds, missed := wanted.openIn(proc, ns)
		c.missed += missed
		for _, fd := range fds {
			c.list = append(c.list, copied{namespace: ns, fd: fd})
		}
		if len(fds) == 0 {
			_ = ns.Close()
		}
	}
	return c, c.home()
}

func (c *copies) home() error {
	if err := unix.Setns(int(c.own.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("return to the host's mount namespace: %w", err)
	}
	return nil
}

// set gives all copies the attributes. It counts those that do not have them
// now: a namespace of another user namespace locks what it received.
func (c *copies) set(attr *unix.MountAttr) (left int, err error) {
	left = c.missed
	for _, one := range c.list {
		// mount_setattr(2) takes only mounts of the caller's namespace.
		err := unix.Setns(int(one.namespace.Fd()), unix.CLONE_NEWNS)
		if err == nil {
			err = unix.MountSetattr(one.fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr.Attr_set, Attr_clr: attr.Attr_clr})
		}
		if err != nil {
			left++
		}
	}
	if len(c.list) == 0 {
		return left, nil
	}
	return left, c.home()
}

func (c *copies) close() {
	for _, one := range c.list {
		_ = unix.Close(one.fd)
		_ = one.namespace.Close()
	}
	_ = c.own.Close()
}

// propagatedFrom describes the copies of a mount. Without a peer group on either
// level there are none.
func propagatedFrom(proc int, m, ground MountRef) (propagated, error) {
	p := propagated{self: m.OldID}
	var ours, below mountinfo.Entry
	err := eachMount(proc, func(e mountinfo.Entry) error {
		switch e.ID {
		case m.OldID:
			p.group, ours = shared(e), e
		case ground.OldID:
			p.ground, below = shared(e), e
		}
		return nil
	})
	p.at = path.Join(below.Root, strings.TrimPrefix(ours.Path, below.Path))
	return p, err
}

func shared(e mountinfo.Entry) string {
	for _, f := range e.Optional {
		if g, isShared := strings.CutPrefix(f, "shared:"); isShared {
			return g
		}
	}
	return ""
}

// allNamespaces opens every mount namespace once, our own too: kubelet's root
// may be mounted twice on the host.
func allNamespaces() ([]*os.File, error) {
	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var found []*os.File
	for _, link := range links {
		name, err := os.Readlink(link)
		if err != nil || seen[name] {
			continue // the process has ended
		}
		seen[name] = true
		if f, err := os.Open(link); err == nil {
			found = append(found, f)
		}
	}
	return found, nil
}

// openIn opens the copies in one namespace and counts those it could not open.
// It asks the kernel where they are and follows no link there.
func (p propagated) openIn(proc int, ns *os.File) (fds []int, missed int) {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return nil, 1 // a user namespace of its own may keep us out
	}
	var entries []mountinfo.Entry
	err := eachMount(proc, func(e mountinfo.Entry) error {
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, 1
	}
	for _, e := range p.among(entries) {
		if fd, err := openMount(e); err == nil {
			fds = append(fds, fd)
		} else {
			missed++
		}
	}
	return fds, missed
}

// among finds the copies in a mount table.
func (p propagated) among(entries []mountinfo.Entry) []mountinfo.Entry {
	byID := make(map[int]mountinfo.Entry, len(entries))
	for _, e := range entries {
		byID[e.ID] = e
	}
	receives := func(e mountinfo.Entry, group string) bool {
		return e.Has("shared:"+group) || e.Has("master:"+group)
	}
	var found []mountinfo.Entry
	for _, e := range entries {
		below, known := byID[e.Parent]
		if e.ID == p.self || !known || !receives(e, p.group) || !receives(below, p.ground) {
			continue
		}
		if path.Join(below.Root, strings.TrimPrefix(e.Path, below.Path)) == p.at {
			found = append(found, e)
		}
	}
	return found
}

// openMount opens a mount of the mount table, if it is topmost at its path.
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

// eachMount reads the mountinfo of the namespace that the thread is in, through
// a descriptor of the host's procfs: a container has another one, or none.
func eachMount(proc int, visit func(mountinfo.Entry) error) error {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(proc, "thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return fmt.Errorf("open mountinfo: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	return mountinfo.Parse(f, visit)
}
