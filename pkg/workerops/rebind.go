package workerops

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// A rebind has two halves with a question between them. mount point puts a clone of
// the staged mount on the empty mount point, read-only and marked as placeholder, and
// sees that it stands there alone. The server then asks once more whether the
// mount point is wanted. finalize gives the clone its final attributes.
//
// In between nothing can be written or deleted through the clone: a driver that
// unpublishes at the same time, and removes the directory tree after a umount
// that came too early, gets EROFS and tries again.

// AttachQuery says what to put where.
type AttachQuery struct {
	// Source is the path of the staged mount, SourceMount the mount expected
	// there.
	Source      string
	SourceMount MountRef
	// Sub is the directory (or file) below the staged root that the mount point
	// shows; empty for the root itself.
	Sub string
	// Target is the empty mount point.
	Target string
	// Interim are the MOUNT_ATTR_* bits that mark the clone as unfinished; they
	// include MOUNT_ATTR_RDONLY.
	Placeholder uint64
}

// AttachAnswer names the mount now on the mount point.
type AttachAnswer struct {
	Mount MountRef
}

func attach(q AttachQuery) (AttachAnswer, error) {
	var none AttachAnswer
	if q.Placeholder&unix.MOUNT_ATTR_RDONLY == 0 {
		return none, refuse("an placeholder must be read-only")
	}
	clone, err := cloneOf(q)
	if err != nil {
		return none, err
	}
	defer func() {
		if clone >= 0 {
			_ = unix.Close(clone)
		}
	}()
	// Private, or mounts made inside one of the two would appear in the other.
	err = unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:    q.Placeholder,
		Propagation: unix.MS_PRIVATE,
	})
	if err != nil {
		return none, fmt.Errorf("mount_setattr on the clone: %w", err)
	}
	ours, err := refOf(clone)
	if err != nil {
		return none, err
	}
	pause("attach/cloned")
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	parentMount, err := target.bare(clone)
	if err != nil {
		return none, err
	}
	receivers, err := ownedNamespaces(parentMount) // finalize has to reach them
	if err != nil {
		return none, err
	}
	closeAll(receivers)
	pause("attach/checked")
	err = unix.MoveMount(clone, "", target.dir, target.name, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return none, fmt.Errorf("move_mount to %q: %w", q.Target, err)
	}
	pause("attach/moved")
	if err := target.alone(ours, parentMount); err != nil {
		// Something else arrived at the same time. Take ours off again; if that
		// fails it stays, read-only, and the next call takes it off.
		_ = unix.Close(clone)
		clone = -1
		if offErr := target.unmountTop(ours); offErr != nil {
			return none, fmt.Errorf("%w; taking ours off again: %w", err, offErr)
		}
		return none, err
	}
	pause("attach/verified")
	return AttachAnswer{Mount: ours}, nil
}

// cloneOf makes a detached clone of what the query names.
func cloneOf(q AttachQuery) (int, error) {
	src, err := openLeaf(q.Source)
	if err != nil {
		return -1, err
	}
	defer src.close()
	staged, ref, err := src.top()
	if err != nil {
		return -1, fmt.Errorf("open %q: %w", q.Source, err)
	}
	defer unix.Close(staged)
	if !ref.Same(q.SourceMount) {
		return -1, refuse("%q was mounted anew since it was looked at", q.Source)
	}
	from := staged
	if q.Sub != "" {
		// Beneath the volume and nowhere else: its content belongs to the
		// workload, which may have put links and mounts there.
		from, err = retryEINTR(func() (int, error) {
			return unix.Openat2(staged, q.Sub, &unix.OpenHow{
				Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
					unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
			})
		})
		if err != nil {
			return -1, missing(err)
		}
		defer unix.Close(from)
	}
	clone, err := retryEINTR(func() (int, error) {
		return unix.OpenTree(from, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return -1, fmt.Errorf("clone %q: %w", q.Source, err)
	}
	return clone, nil
}

// missing explains why the directory (or file) of a mount point was not found in the
// volume. What lies there belongs to the workload.
func missing(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: the directory that was mounted is gone from the volume: %w", worker.ErrRefused, err)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: the directory that was mounted is a link, or another filesystem, in the volume now: %w", worker.ErrRefused, err)
	}
	return fmt.Errorf("look for the directory that was mounted in the volume: %w", err)
}

// bare checks that nothing is mounted at the leaf, that it is of the same type as
// the clone's root, and that it is empty. It gives the mount that the leaf lies on.
func (l leaf) bare(clone int) (MountRef, error) {
	parentMount, err := refOf(l.dir)
	if err != nil {
		return MountRef{}, err
	}
	fd, there, err := l.top()
	if err != nil {
		return MountRef{}, fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !there.Same(parentMount) {
		return MountRef{}, refuse("%s was mounted on the mount point since it was looked at", there)
	}
	var here, brought unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_SIZE, &here); err != nil {
		return MountRef{}, fmt.Errorf("statx of the mount point: %w", err)
	}
	if err := unix.Statx(clone, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &brought); err != nil {
		return MountRef{}, fmt.Errorf("statx of the clone: %w", err)
	}
	hereDir := here.Mode&unix.S_IFMT == unix.S_IFDIR
	if broughtDir := brought.Mode&unix.S_IFMT == unix.S_IFDIR; hereDir != broughtDir {
		return MountRef{}, refuse("the mount point and the volume are not both directories or both files")
	}
	empty := here.Size == 0
	if hereDir {
		if empty, err = emptyDirectory(fd); err != nil {
			return MountRef{}, fmt.Errorf("look whether the directory is empty: %w", err)
		}
	}
	if !empty {
		return MountRef{}, fmt.Errorf("%w: a mount would hide what lies there, on the node's disk: %w", worker.ErrRefused, unix.ENOTEMPTY)
	}
	return parentMount, nil
}

// emptyDirectory reads until the first name. The descriptor is a mere reference to a
// directory on which nothing is mounted, so no volume is asked.
func emptyDirectory(at int) (bool, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(at, ".", &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
	})
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 512) // the longest name has 255 bytes
	for {
		n, err := retryEINTR(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n == 0 {
			return err == nil, err
		}
		if _, count, _ := unix.ParseDirent(buf[:n], 1, nil); count > 0 { // it leaves out . and ..
			return false, nil
		}
	}
}

// alone checks that the leaf's stack is exactly our mount: it is topmost, and it
// stands on the directory's own mount with nothing between.
func (l leaf) alone(ours, parentMount MountRef) error {
	fd, top, err := l.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	_ = unix.Close(fd)
	if !top.Same(ours) {
		return refuse("%s stands on top of the mount point", top)
	}
	below, err := l.self.parentOf(ours)
	if err != nil {
		return err
	}
	if below.OldID != parentMount.OldID {
		return refuse("%s stands beneath ours at the mount point", below)
	}
	return nil
}

// FinalizeQuery says what a placed clone is to become.
type FinalizeQuery struct {
	Target string
	// Mount is the mount expected at Target, alone.
	Mount MountRef
	// Attr are the final MOUNT_ATTR_* bits; all others are cleared.
	Attr uint64
	// Mark is a bit that stays on a mount that is usable until its copies in
	// other mount namespaces are too.
	Mark uint64
	// Interim are the bits to go back to when the mount does not stand alone.
	Placeholder uint64
	// Covers is the dead mount that it stands on; zero for the directory at Target.
	Covers MountRef
	// Private takes the mount out of the peer group it got from its parent.
	Private bool
	// Shared has it share its events, if it does not.
	Shared bool
	// Budget bounds finding the copies, and each change of them.
	Budget time.Duration
}

// FinalizeAnswer says how far the attributes got.
type FinalizeAnswer struct {
	// Left counts copies in other mount namespaces that are still read-only; -1 when
	// that took too long to find out. The mount is usable, and keeps its mark.
	Left int
}

// attrSettable are the attributes that finalize decides on, beside the access
// time mode.
const attrSettable = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV |
	unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR_NOSYMFOLLOW

func finalize(q FinalizeQuery) (FinalizeAnswer, error) {
	var none FinalizeAnswer
	pause("finalize")
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	parentMount, err := refOf(target.dir)
	if err != nil {
		return none, err
	}
	if q.Covers != (MountRef{}) {
		parentMount = q.Covers
	}
	fd, ref, err := target.top()
	if err != nil {
		return none, fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !ref.Same(q.Mount) {
		return none, refuse("%s is at the mount point now", ref)
	}
	pause("finalize/checked")
	s := settling{leaf: target, fd: fd, ours: ref, parentMount: parentMount}
	left, err := s.run(q)
	if err == nil {
		return FinalizeAnswer{Left: left}, nil
	}
	// Something arrived on top meanwhile: what lies beneath it must not be
	// writable, because its next umount would unmount-dead-top it.
	placeholder := setattrOf(q.Placeholder)
	if s.propagatedMounts != nil {
		s.propagatedMounts.set(placeholder)
	}
	if backErr := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, placeholder); backErr != nil {
		return none, fmt.Errorf("%w; making it read-only again: %w", err, backErr)
	}
	return none, err
}

// settling is one mount on its way to its final attributes. It is held by a
// descriptor: whatever happens to the path meanwhile, no other mount changes.
type settling struct {
	leaf              leaf
	fd                int
	ours, parentMount MountRef
	propagatedMounts  *propagatedMounts
}

// run makes the mount usable, then its copies, and then takes the mark off. It
// looks before and after each change whether the mount stands alone.
func (s *settling) run(q FinalizeQuery) (left int, err error) {
	if err := s.leaf.alone(s.ours, s.parentMount); err != nil {
		return 0, err
	}
	pause("finalize/alone")
	if err := s.set(setattrOf(q.Attr | q.Mark)); err != nil {
		return 0, err
	}
	pause("finalize/set")
	s.propagatedMounts = newPropagatedMounts(s.ours, s.parentMount, q.Budget)
	pause("copies")
	left = s.propagatedMounts.set(setattrOf(q.Attr))
	if left != 0 {
		return left, nil
	}
	pause("final/checked")
	final := setattrOf(q.Attr)
	if q.Private {
		final.Propagation = unix.MS_PRIVATE
	}
	if q.Shared {
		final.Propagation = unix.MS_SHARED
	}
	if err := s.leaf.alone(s.ours, s.parentMount); err != nil {
		return 0, err
	}
	pause("final/alone")
	if err := s.set(final); err != nil {
		return 0, err
	}
	pause("final/set")
	return 0, nil
}

func (s *settling) set(attr *unix.MountAttr) error {
	if err := unix.MountSetattr(s.fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return s.leaf.alone(s.ours, s.parentMount)
}

// setattrOf sets the given attributes and clears all others.
func setattrOf(attr uint64) *unix.MountAttr {
	return &unix.MountAttr{
		Attr_set: attr & (attrSettable | unix.MOUNT_ATTR__ATIME),
		Attr_clr: (attrSettable &^ attr) | unix.MOUNT_ATTR__ATIME,
	}
}
