package touch

import (
	"fmt"
	"os"
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

// copyOf is one propagated copy of a mount.
type copyOf struct {
	id   int
	path string
}

// settleCopies gives all copies of the mount in other mount namespaces their
// final attributes. It counts those it could not change: a namespace of another
// user namespace locks what it received.
//
// When it fails, the thread may be left in another mount namespace; it is for
// workers that are spent.
func settleCopies(m MountRef, attr *unix.MountAttr) (left int, err error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return 0, err
	}
	defer own.Close()
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(proc)
	group, err := peerGroup(proc, m)
	if err != nil || group == "" {
		return 0, err
	}
	namespaces, err := otherNamespaces()
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, ns := range namespaces {
			_ = ns.Close()
		}
	}()
	// setns into a mount namespace needs a thread whose root and working
	// directory are its own (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	for _, ns := range namespaces {
		left += settleIn(proc, ns, group, attr)
	}
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNS); err != nil {
		return left, fmt.Errorf("return to the host's mount namespace: %w", err)
	}
	return left, nil
}

// peerGroup gives the mount's peer group as mountinfo writes it, empty for a
// private mount.
func peerGroup(proc int, m MountRef) (string, error) {
	var group string
	err := eachMount(proc, func(e mountinfo.Entry) error {
		for _, f := range e.Optional {
			if g, shared := strings.CutPrefix(f, "shared:"); shared && e.ID == m.OldID {
				group = g
			}
		}
		return nil
	})
	return group, err
}

// otherNamespaces opens every mount namespace but our own, once each.
func otherNamespaces() ([]*os.File, error) {
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{own: true}
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

// settleIn changes the copies in one namespace and counts those it could not
// change. It asks the kernel where they are and follows no link there.
func settleIn(proc int, ns *os.File, group string, attr *unix.MountAttr) (left int) {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return 1 // a user namespace of its own may keep us out
	}
	var copies []copyOf
	err := eachMount(proc, func(e mountinfo.Entry) error {
		if e.Has("shared:"+group) || e.Has("master:"+group) {
			copies = append(copies, copyOf{id: e.ID, path: e.Path})
		}
		return nil
	})
	if err != nil {
		return 1
	}
	for _, c := range copies {
		if settleCopy(c, attr) != nil {
			left++
		}
	}
	return left
}

func settleCopy(c copyOf, attr *unix.MountAttr) error {
	l, err := openLeaf(c.path)
	if err != nil {
		return err
	}
	defer l.close()
	fd, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(l.dir, l.name, unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return err
	}
	if int(st.Mnt_id) != c.id {
		return refuse("something else is mounted on the copy")
	}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr.Attr_set, Attr_clr: attr.Attr_clr})
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
