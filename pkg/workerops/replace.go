package workerops

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// A dead mount is replaced without a moment in which its mount point is bare: a clone
// of the staged mount goes beneath it, and then the dead one is taken off. The
// clone is private before it is moved and read-only until finalize, the second
// half, which is the same as a rebind's: a driver that unpublishes meanwhile,
// and removes the directory tree after a umount that only unmount-dead-top the clone,
// gets EROFS.

// ReplaceQuery says what to put instead of what.
type ReplaceQuery struct {
	AttachQuery
	// Dead is the mount expected at Target, alone, Superblock its filesystem.
	Dead       MountRef
	Superblock Number
	// Ended is true for a filesystem that has ended although it answers, as the
	// kernel's facts show. Any other must not answer.
	Ended bool
	// Stale is true for one of NFS, which has to answer ESTALE.
	Stale bool
}

// ReplaceAnswer names the mount now on the mount point.
type ReplaceAnswer struct {
	Mount MountRef
	// Left is true when another mount namespace has something of its own on top
	// of the mount point, so that what it has there was left as it is.
	Left bool
}

// ErrNoBeneath says that the kernel cannot put a mount beneath another one.
var ErrNoBeneath = errors.New("the kernel cannot put a mount beneath another one (move_mount with MOVE_MOUNT_BENEATH, Linux 6.5)")

// moveBeneath is MOVE_MOUNT_BENEATH (move_mount(2), Linux 6.5).
const moveBeneath = 0x200

// CanMoveBeneath asks the kernel. It looks at flags before it looks at
// descriptors.
func CanMoveBeneath() bool {
	if withoutBeneath() {
		return false
	}
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
	return errors.Is(err, unix.EBADF)
}

// CanMove asks the kernel whether mounts may be moved at all: somebody may have put a
// limit on the call (seccomp).
func CanMove() bool {
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	return errors.Is(err, unix.EBADF)
}

func replace(q ReplaceQuery) (ReplaceAnswer, error) {
	var none ReplaceAnswer
	switch {
	case q.Placeholder&unix.MOUNT_ATTR_RDONLY == 0:
		return none, refuse("an placeholder must be read-only")
	case !CanMoveBeneath():
		return none, ErrNoBeneath
	}
	clone, err := cloneOf(q.AttachQuery)
	if err != nil {
		return none, err
	}
	defer unix.Close(clone)
	// Private, or a umount on top of it would take what stands on its peers.
	err = unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: q.Placeholder, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return none, fmt.Errorf("mount_setattr on the clone: %w", err)
	}
	ours, err := refOf(clone)
	if err != nil {
		return none, err
	}
	pause("replace/cloned")
	target, err := openLeaf(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	if q.Stale {
		err = target.stale(q.Dead, q.Superblock)
		if errno := answers(clone); err == nil && errno != 0 {
			err = refuse("the staged mount answers %q", errno)
		}
	} else {
		err = target.ended(q.Ended)
	}
	if err != nil {
		return none, err
	}
	r := replacement{leaf: target, clone: clone, ours: ours, dead: q.Dead, superblock: q.Superblock}
	if r.parentMount, err = refOf(target.dir); err != nil {
		return none, err
	}
	if err := r.putBeneath(); err != nil {
		return none, err
	}
	pause("replace/beneath")
	left, err := r.unmountDeadTop()
	if err != nil {
		return none, err
	}
	pause("replace/verified")
	return ReplaceAnswer{Mount: ours, Left: left}, nil
}

// replacement is one dead mount on its way out.
type replacement struct {
	leaf                    leaf
	clone                   int
	ours, dead, parentMount MountRef
	superblock              Number
}

// putBeneath puts the clone beneath the dead mount, if that stands alone.
func (r *replacement) putBeneath() error {
	fd, top, err := r.leaf.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	defer unix.Close(fd)
	if !top.Same(r.dead) {
		return refuse("%s is at the mount point now", top)
	}
	below, err := parentOf(r.dead)
	if err != nil {
		return err
	}
	if below.OldID != r.parentMount.OldID {
		return refuse("%s stands beneath the dead mount", below)
	}
	if err := r.leaf.uncovered(r.dead, MountRef{}); err != nil {
		return err
	}
	// What could keep the other half from being done is found out now: those that
	// receive the mount can be read.
	receivers, err := ownedNamespaces(r.parentMount)
	if err != nil {
		return err
	}
	closeAll(receivers)
	pause("replace/checked")
	err = unix.MoveMount(r.clone, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
	if err != nil {
		return fmt.Errorf("move_mount beneath what is at the mount point: %w", err)
	}
	return nil
}

// unmount-dead-top takes the dead mount off ours. Where the mount point lies on a shared mount,
// the kernel has put copies of ours beneath the dead mount's copies in other
// mount namespaces, and made them peers of ours: the umount takes the copies of
// the dead mount too, and nothing else, because ours has no other peers. When
// one of them carries something else, ours leaves its peers before the umount.
func (r *replacement) unmountDeadTop() (left bool, err error) {
	if err := r.standsOnOurs(); err != nil {
		return false, err
	}
	foreign := r.foreignOnPeers()
	if foreign {
		err := unix.MountSetattr(r.clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
		if err != nil {
			return false, fmt.Errorf("mount_setattr: %w", err)
		}
	}
	pause("replace/copies")
	if err := r.leaf.detachTop(r.dead, MountRef{}); err != nil {
		return false, err
	}
	pause("replace/detached")
	if foreign {
		err := unix.MountSetattr(r.clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_SHARED})
		if err != nil {
			return false, fmt.Errorf("mount_setattr: %w", err)
		}
	}
	return foreign, r.leaf.alone(r.ours, r.parentMount)
}

// standsOnOurs checks that the stack is the dead mount on ours, and no more.
func (r *replacement) standsOnOurs() error {
	fd, top, err := r.leaf.top()
	if err != nil {
		return fmt.Errorf("open the mount point: %w", err)
	}
	_ = unix.Close(fd)
	if !top.Same(r.dead) {
		return refuse("%s stands on top of the mount point", top)
	}
	for _, pair := range [][2]MountRef{{r.dead, r.ours}, {r.ours, r.parentMount}} {
		below, err := parentOf(pair[0])
		if err != nil {
			return err
		}
		if below.OldID != pair[1].OldID {
			return refuse("%s stands at the mount point too", below)
		}
	}
	return nil
}

// foreignOnPeers is true when something else than a copy of the dead mount
// stands on a copy of ours, or nobody can tell.
func (r *replacement) foreignOnPeers() bool {
	vanishing, err := onPeers(r.ours)
	if err != nil {
		return true
	}
	dead, err := r.leaf.self.entry(r.dead)
	isCopy := copyOf(dead, r.superblock)
	return err != nil || slices.ContainsFunc(vanishing, func(e mountinfo.Entry) bool { return !isCopy(e) })
}

// onPeers gives the mounts, in any mount namespace with the host's owner, that a umount on top of m may
// take: those that stand at the same directory of the filesystem in a mount that
// receives the events of m. That one may show more of the filesystem than m does.
func onPeers(m MountRef) ([]mountinfo.Entry, error) {
	namespaces, err := ownedNamespaces(m)
	if err != nil {
		return nil, err
	}
	closeAll(namespaces)
	var all []mountinfo.Entry
	var on mountinfo.Entry
	for _, ns := range namespaces {
		for _, e := range ns.table {
			if all = append(all, e); e.ID == m.OldID {
				on = e
			}
		}
	}
	if shared(on) == "" {
		return nil, nil
	}
	groups := followers(all, shared(on))
	roots := map[int]string{}
	for _, e := range all {
		rest, shows := strings.CutPrefix(on.Root, strings.TrimSuffix(e.Root, "/"))
		if e.ID != on.ID && shows && (rest == "" || rest[0] == '/') && (groups[shared(e)] || groups[optional(e, "master:")]) {
			roots[e.ID] = path.Join(e.Path, rest)
		}
	}
	var found []mountinfo.Entry
	for _, e := range all {
		if at, is := roots[e.Parent]; is && e.Path == at {
			found = append(found, e)
		}
	}
	return found, nil
}
