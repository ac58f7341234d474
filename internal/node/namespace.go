package node

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Namespace is the host's mount namespace, seen from a process that may live in
// another one.
type Namespace struct {
	// fd is nil for our own namespace.
	fd *os.File
	// id is the kernel's unique namespace id; 0 for our own namespace, and
	// where the kernel has none (below Linux 6.11).
	id uint64
	// mountinfo stays bound to the namespace it was opened in. changes is opened a second time, for
	// Topology to poll, and watched a third time, for Changes: an open file tells of each change once.
	mountinfo, changes, watched *os.File
	mu                          sync.Mutex // one reader of mountinfo at a time: it has one offset
	// statmount is true when the kernel's statmount(2) tells everything that
	// mountinfo does, uniqueIDs when it tells at least those.
	statmount, uniqueIDs bool
	topology             topology
	// roots are the resolved paths of the directories that OpenNamespace was given.
	roots map[string]string
}

// openTimeout bounds resolving the root directories when the server starts: one of
// them may be on a volume.
const openTimeout = 10 * time.Second

// OpenNamespace opens the mount namespace at path (as in /proc/1/ns/mnt), empty
// for our own, and resolves the given directories in it.
func OpenNamespace(path string, roots []string) (*Namespace, error) {
	ns := &Namespace{roots: make(map[string]string, len(roots))}
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("mount namespace: %w", err)
		}
		ns.fd = f
	}
	done := make(chan error, 1)
	onThreadThatEnds(func() { done <- ns.enter(roots) })
	select {
	case err := <-done:
		if err != nil {
			return nil, errors.Join(err, ns.Close())
		}
	case <-time.After(openTimeout):
		// The thread is lost, and the server is about to exit.
		return nil, fmt.Errorf("the root directories %q do not answer within %s", roots, openTimeout)
	}
	ns.statmount, ns.uniqueIDs = ns.statmountTells()
	return ns, nil
}

// onThreadThatEnds runs do on a thread that ends after it, as one must that entered another
// mount namespace. The process's first thread cannot end: /proc/<pid> would show that
// namespace as the process's from then on.
func onThreadThatEnds(do func()) {
	go func() {
		runtime.LockOSThread() // without an unlock the runtime ends the thread with this goroutine
		if unix.Gettid() != os.Getpid() {
			do()
			return
		}
		defer runtime.UnlockOSThread()
		begun := make(chan struct{}) // until then this goroutine keeps the first thread
		onThreadThatEnds(func() {
			close(begun)
			do()
		})
		<-begun
	}()
}

func (n *Namespace) enter(roots []string) (err error) {
	if n.fd != nil {
		if err := operation.EnterMounts(n.fd); err != nil {
			return err
		}
		n.id = mount.NamespaceID(int(n.fd.Fd()))
	}
	for _, f := range []**os.File{&n.mountinfo, &n.changes, &n.watched} {
		// Not os.Open: the runtime's own poller would take the events.
		fd, err := unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("mountinfo: %w", err)
		}
		*f = os.NewFile(uintptr(fd), "mountinfo")
	}
	for _, root := range roots {
		if n.roots[root], err = filepath.EvalSymlinks(root); err != nil {
			return fmt.Errorf("root directory %s: %w", root, err)
		}
	}
	return nil
}

// File returns the namespace for workers; nil for our own.
func (n *Namespace) File() *os.File { return n.fd }

// RealRoots returns the directories of OpenNamespace with their resolved paths.
func (n *Namespace) RealRoots() map[string]string { return n.roots }

// RealPath replaces a root at the front of p by its resolved path: the longest, as a root may lie in
// another one.
func (n *Namespace) RealPath(p string) string {
	from, found := "", p
	for root, resolved := range n.roots {
		if rest, beneath := facts.Below(root, p); beneath && root != resolved && len(root) > len(from) {
			from, found = root, path.Join(resolved, rest)
		}
	}
	return found
}

// Close frees the descriptors.
func (n *Namespace) Close() error {
	var errs []error
	for _, f := range []*os.File{n.fd, n.mountinfo, n.changes, n.watched} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Mounts reads the whole mount table. Nothing in it is cached.
func (n *Namespace) Mounts() (Table, error) {
	if n.statmount {
		if t, err := n.readStatmount(); err == nil {
			return t, nil
		}
		// A seccomp filter may forbid the call; mountinfo is always there.
	}
	return n.readMountinfo()
}

func (n *Namespace) readMountinfo() (Table, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.mountinfo.Seek(0, 0); err != nil {
		return Table{}, fmt.Errorf("mountinfo: %w", err)
	}
	mounts, err := mount.Parse(n.mountinfo)
	if err != nil {
		return Table{}, err
	}
	if n.uniqueIDs {
		mount.Identify(n.id, mounts, mount.Always)
	}
	return NewTable(mounts), nil
}

// statmountTells finds out by asking what statmount(2) tells of what mountinfo does:
// all, since it knows the sources (Linux 6.13), or at least unique ids.
func (n *Namespace) statmountTells() (all, ids bool) {
	if n.fd != nil && n.id == 0 {
		return false, false
	}
	list, err := mount.ListAll(n.id, mount.Root)
	if err != nil {
		return false, false
	}
	var told mount.Fields
	listed := map[int]bool{}
	for _, id := range list {
		m, err := mount.Stat(n.id, id, mount.Everything)
		if err != nil || m.Told&mount.Always != mount.Always {
			continue
		}
		told |= m.Told
		listed[m.OldID] = true
	}
	table, err := n.readMountinfo()
	if err != nil {
		return false, false
	}
	missed := slices.DeleteFunc(slices.Clone(table.Mounts()), func(m facts.Mount) bool { return listed[m.OldID] })
	// A mount that was made just now may be missed. With more of them the kernel began
	// at the wrong mount of another namespace (mount.Lowest), which hides the right one.
	const wanted = mount.Options | mount.Source
	all = told&wanted == wanted && len(missed) <= len(table.Mounts())/10
	return all, !all && len(listed) > 0
}

func (n *Namespace) readStatmount() (Table, error) {
	mounts, err := n.list(mount.Everything)
	return NewTable(mounts), err
}

func (n *Namespace) list(fields mount.Fields) (mounts []facts.Mount, err error) {
	ids, err := mount.ListAll(n.id, mount.Root)
	if err != nil {
		return nil, err
	}
	mounts = make([]facts.Mount, 0, len(ids))
	for _, id := range ids {
		status, err := mount.Stat(n.id, id, fields)
		if errors.Is(err, unix.ENOENT) {
			continue // unmounted since it was listed
		}
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, status.Mount)
	}
	return mounts, nil
}
