package workerops

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

type insideEntry = mountinfo.Entry

// swap puts a clone instead of a dead mount. The thread is in the namespace.
func (r *room) swap(t InContainerTarget, b brought, result *InContainerResult) error {
	target, err := r.reach(t)
	if err != nil {
		return err
	}
	defer target.close()
	parentMount, err := r.self.refOf(target.dir)
	if err != nil {
		return err
	}
	if below, known := r.entry(parentMount); !known || shared(below) != "" {
		return refuse("the mount that it stands on shares its events with others")
	}
	if t.Swap.Stray != (MountRef{}) {
		if err := target.unmountTop(t.Swap.Stray); err != nil {
			return err
		}
	}
	if t.Swap.Stray != (MountRef{}) { // it was covered until now
		if err := target.ended(false); err != nil {
			return err
		}
	}
	ours := t.Swap.Ours
	start := time.Now()
	covers := t.Swap.Covers != (MountRef{})
	if ours == (MountRef{}) {
		if ours, err = r.self.refOf(b.clone); err != nil {
			return err
		}
		if covers {
			err = r.cover(target, t, b, ours)
		} else {
			start, err = r.putBeneath(target, t, b.clone, parentMount)
		}
		if err != nil {
			return err
		}
	}
	if covers {
		parentMount = t.Swap.Covers
	} else if !ours.Same(t.Mount) {
		pause("inside/beneath")
		if err := asSeen(t); err != nil {
			return err
		}
		if err := r.unmountDuplicate(target, t.Mount, ours); err != nil {
			return err
		}
		result.Swapped = time.Since(start)
		pause("inside/detached")
	}
	if err := target.alone(ours, parentMount); err != nil {
		return err
	}
	pause("inside/verified")
	fd, top, err := target.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !top.Same(ours) {
		return refuse("%s is topmost at the mount point now", top)
	}
	if err := r.alive(); err != nil {
		return err
	}
	// The guard last: who finds it knows that something is left to be done.
	if b.source >= 0 && !r.shares(ours) {
		err := unix.MoveMount(b.source, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|unix.MOVE_MOUNT_SET_GROUP)
		if err != nil {
			return fmt.Errorf("share its events with the host's mount again: %w", err)
		}
		pause("inside/joined")
	}
	final := setattrOf(t.Swap.Attr)
	final.Propagation = t.Swap.After
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, final); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	pause("inside/final")
	return nil
}

// putBeneath puts the clone beneath the dead mount, with copies of what stands in
// that. It gives the moment at which it did.
func (r *room) putBeneath(l leaf, t InContainerTarget, clone int, parentMount MountRef) (at time.Time, err error) {
	fd, top, err := l.top()
	if err != nil {
		return at, fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !top.Same(t.Mount) {
		return at, refuse("%s is topmost at the mount point now", top)
	}
	dead, known := r.entry(t.Mount)
	if !known || dead.Parent != parentMount.OldID {
		return at, refuse("the dead mount does not stand there alone")
	}
	if err := asSeen(t); err != nil {
		return at, err
	}
	at = time.Now()
	err = unix.MoveMount(clone, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
	switch {
	case errors.Is(err, unix.EINVAL) && !CanMoveBeneath():
		return at, ErrNoBeneath
	case errors.Is(err, unix.EINVAL):
		return at, fmt.Errorf("%w: the kernel does not let it be replaced: %w", worker.ErrRefused, err)
	case err != nil:
		return at, fmt.Errorf("move_mount beneath what is at the mount point: %w", err)
	}
	return at, nil
}

// cover puts the clone on top of the dead mount, in which nothing may be mounted.
func (r *room) cover(l leaf, t InContainerTarget, b brought, ours MountRef) error {
	if len(b.nested) > 0 {
		return refuse("something is mounted on %q inside, which a mount on top would hide", b.nested[0].path)
	}
	if err := asSeen(t); err != nil {
		return err
	}
	return l.cover(b.clone, ours, t.Swap.Covers, t.Swap.Superblock, func() { pause("inside/checked") })
}

// asSeen refuses when somebody changed the mount's attributes: ours has those that
// it had. Below Linux 6.8 nothing tells.
func asSeen(t InContainerTarget) error {
	if t.Mount.ID == 0 {
		return nil
	}
	now, err := statMount(t.Mount.ID)
	if err == nil && now.Attr&attrSettable != t.Attr&attrSettable {
		return refuse("its attributes have changed since it was looked at")
	}
	return err
}

// unmountDuplicate detaches the dead mount from ours, with what stands in it and was copied
// into ours. Its open files stay dead.
func (r *room) unmountDuplicate(l leaf, dead, ours MountRef) error {
	below, err := r.self.parentOf(dead)
	if err != nil {
		return err
	}
	if below.OldID != ours.OldID {
		return refuse("%s is beneath the dead mount", below)
	}
	return l.detachTop(dead, ours)
}

// nested is a copy of what stands in a dead mount, on its way into the clone.
type nested struct {
	// name is beneath the dead mount, path as seen in the container.
	name, path string
	fd         int
}

// copyDead clones a dead mount, and what stands in it. Nothing asks the dead
// filesystem: when a lookup fails there, the kernel drops whatever is mounted at
// that name (d_invalidate). What is cached is enough, or it is not to be had.
func (r *room) copyDead(t InContainerTarget) (clone int, all []nested, err error) {
	clone, fd, err := r.cloneTop(t)
	if err != nil {
		return -1, nil, err
	}
	defer unix.Close(fd)
	dead, known := r.entry(t.Mount)
	on, err := r.self.standOn(t.Mount)
	if err == nil && len(on) > 0 && (!known || shared(dead) != "") {
		err = refuse("what is mounted on %q inside shares its events with others", on[0].Path)
	}
	for _, e := range on {
		if err != nil {
			break
		}
		n := nested{name: strings.TrimPrefix(e.Path, strings.TrimSuffix(dead.Path, "/")+"/"), path: e.Path}
		if n.fd, err = r.copyOne(e, n.name, fd); err == nil {
			all = append(all, n)
		}
	}
	return clone, all, err
}

// cloneTop clones what is topmost at a target, and gives a reference to that.
func (r *room) cloneTop(t InContainerTarget) (clone, fd int, err error) {
	target, err := r.reach(t)
	if err != nil {
		return -1, -1, err
	}
	defer target.close()
	fd, top, err := target.top()
	if err != nil {
		return -1, -1, fmt.Errorf("open the mount point: %w", err)
	}
	if !top.Same(t.Mount) {
		err = refuse("%s is topmost at the mount point now", top)
	} else {
		clone, err = retryEINTR(func() (int, error) {
			return unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, -1, fmt.Errorf("clone what is mounted there: %w", err)
	}
	return clone, fd, nil
}

func (r *room) copyOne(e mountinfo.Entry, name string, fd int) (int, error) {
	from, err := retryEINTR(func() (int, error) {
		return unix.Openat2(fd, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
			Resolve: resolveCached | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	if err != nil {
		return -1, fmt.Errorf("%w: what is mounted on %q inside cannot be reached without the dead filesystem: %w", worker.ErrRefused, e.Path, err)
	}
	defer unix.Close(from)
	if ref, err := r.self.refOf(from); err != nil || ref.OldID != e.ID {
		return -1, refuse("several mounts stand on %q inside", e.Path)
	}
	copied, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(from, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return -1, fmt.Errorf("clone what is mounted on %q: %w", e.Path, err)
	}
	return copied, nil
}

// attach puts a copy into the clone. The thread has to be where the clone was made:
// the kernel knows a detached tree only there.
func (n nested) attach(clone int) error {
	to, err := retryEINTR(func() (int, error) {
		return unix.Openat2(clone, n.name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
				unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %q, on which something is mounted inside, is not in the healed volume: %w", worker.ErrRefused, n.path, err)
	}
	defer unix.Close(to)
	err = unix.MoveMount(n.fd, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: this kernel cannot bring along what is mounted on %q inside (Linux 6.15 can): %w", worker.ErrRefused, n.path, err)
	}
	if err != nil {
		return fmt.Errorf("bring along what is mounted on %q: %w", n.path, err)
	}
	return nil
}

// resolveCached is RESOLVE_CACHED (openat2(2), Linux 5.12).
const resolveCached = 0x20

// touch looks at what is on the mount point now, whatever it is.
func (r *room) touch(t InContainerTarget) (result InContainerResult) {
	target, err := r.reach(t)
	if err != nil {
		result.fail(err)
		return result
	}
	defer target.close()
	result.Errno = target.answers()
	return result
}

// answers asks the filesystem at the leaf for what it cannot know by itself.
func (l leaf) answers() syscall.Errno {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(l.dir, l.name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_BENEATH,
		})
	})
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(fd)
	return answers(fd)
}

func answers(fd int) syscall.Errno {
	var st unix.Statx_t
	return errnoOf(unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st))
}

// ended refuses when what is on the mount point answers.
func (l leaf) ended(known bool) error {
	if !known && l.answers() == 0 {
		return refuse("it answers again")
	}
	return nil
}

// reach resolves the way to a target. The directories above a mount lie on other
// filesystems: where one of them could keep us waiting, or be dead itself, only
// what is cached is walked.
func (r *room) reach(t InContainerTarget) (leaf, error) {
	at, known := r.entry(t.Mount)
	if !known {
		return leaf{}, refuse("%s is no longer in the container", t.Mount)
	}
	through := ""
	for known {
		var above mountinfo.Entry
		if above, known = r.entryOf(at.Parent); !known || above.ID == at.ID {
			break
		}
		if above.Path != at.Path && mayHang(above.FSType) {
			through = above.FSType
		}
		at = above
	}
	if through == "" {
		l, err := openLeaf(t.Path)
		l.self = r.self
		return l, err
	}
	dir, name := path.Split(t.Path)
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, path.Clean(dir), &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: resolveCached | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	if err != nil {
		return leaf{}, fmt.Errorf("%w: the way to it leads through a %s, which may not answer: %w", worker.ErrRefused, through, err)
	}
	return leaf{dir: fd, name: name, self: r.self}, nil
}

// mayHang is true for filesystems behind a daemon or a server.
func mayHang(fsType string) bool {
	kind, _, _ := strings.Cut(fsType, ".")
	return slices.Contains([]string{"fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "autofs"}, kind)
}

// shares is true for a mount that has joined its peers already.
func (r *room) shares(m MountRef) bool {
	joined := false
	_ = r.self.table(func(e mountinfo.Entry) {
		joined = joined || e.ID == m.OldID && shared(e) != ""
	})
	return joined
}

func (r *room) readTable() error {
	r.tableAtEntry = nil
	return r.self.table(func(e mountinfo.Entry) { r.tableAtEntry = append(r.tableAtEntry, e) })
}

func (r *room) entry(m MountRef) (mountinfo.Entry, bool) { return r.entryOf(m.OldID) }

func (r *room) entryOf(id int) (mountinfo.Entry, bool) {
	at := slices.IndexFunc(r.tableAtEntry, func(e mountinfo.Entry) bool { return e.ID == id })
	if at < 0 {
		return mountinfo.Entry{}, false
	}
	return r.tableAtEntry[at], true
}
