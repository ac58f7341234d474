package ops

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// To put a mount at a mount point is one transaction, on the host and in containers:
//
//  1. prepare: open_tree(2) clones a healthy mount. The clone is made a placeholder:
//     read-only, nosuid, nodev, noexec, nosymfollow and private.
//  2. place: move_mount(2) puts the clone on the empty directory of the mount point, beneath
//     the dead mount or on top of it, after all was checked that could refuse. Beneath: the
//     dead mount is then detached from the top.
//  3. verify: the clone, and nothing else, is what a path walk to the mount point meets.
//  4. finalize: the clone gets its final attributes and propagation (finalize.go).
//
// On the host the server asks between 3 and 4 once more whether the mount point is wanted. A
// driver's NodeUnpublishVolume may have run since: it unmounts once, and then removes the
// directory tree. If that umount took the dead mount and left a writable clone, the removal
// would delete the volume's files; from a read-only one the driver gets EROFS and tries again.

var faultPointNames = [...]string{facts.OnDirectory: "rebind", facts.BeneathDead: "replace", facts.OnDead: "cover"}

// PlaceAnswer names the mount now at the mount point.
type PlaceAnswer struct {
	Mount facts.Ref
	On    facts.Ref
	// Left is true when another mount namespace has a mount of its own on top of its copy
	// of the dead mount: all copies of the dead mount were left there, or the umount would
	// have taken that mount, too.
	Left bool
}

// CanMoveBeneath reports whether the kernel can put a mount beneath another one.
func CanMoveBeneath() bool { return !withoutBeneath() && mount.CanMoveBeneath() }

func place(q facts.PlacePlan) (a PlaceAnswer, err error) {
	p := placement{operation: faultPointNames[q.Position], position: q.Position, dead: Dead{q.Dead, q.Ended, facts.IsNFS(q.Dead.FSType)}, onHost: true}
	if p.clone, p.ours, err = cloneSource(q.Staged, q.Sub, asPlaceholder); err != nil {
		return a, err
	}
	defer closeFD(&p.clone)
	pause(p.operation + "/cloned")
	if p.target, err = openTarget(q.Target); err != nil {
		return a, err
	}
	defer p.target.close()
	if q.Position == facts.BeneathDead { // that of OnDead is in checkDead, by descriptor
		if err := p.dead.check(p.target); err != nil {
			return a, err
		}
		if p.dead.Stale {
			if errno := answers(p.clone); errno != 0 {
				return a, refuse("the staged mount answers %q", errno)
			}
		}
	}
	if p.parent, err = p.target.parent(); err != nil {
		return a, err
	}
	err = p.run()
	return PlaceAnswer{Mount: p.ours, On: p.parent, Left: p.left}, err
}

// placement is a clone on its way to a mount point.
type placement struct {
	operation string // names the fault points
	target    targetHandle
	position  facts.Position
	clone     int // a descriptor of ours; closed, and -1, once ours had to be unmounted again
	// ours is the clone as a mount.
	ours facts.Ref
	// parent is what ours is mounted on in the end: the mount that the directory of the
	// mount point lies on, or the dead mount that ours covers.
	parent facts.Ref
	dead   Dead
	// onHost is true in the host's mount namespace, where the parent mount may share its mount
	// events: the kernel then puts copies of ours into other mount namespaces. It is false in a
	// container, where ours has copies of the mounts inside the dead mount that it replaces:
	// detached with the dead mount, they are not lost.
	onHost bool

	// left is PlaceAnswer.Left.
	left bool
	// moved is when ours was moved to its position; zero if an earlier call did that.
	// swapped is how long it took from there until the dead mount was detached.
	moved   time.Time
	swapped time.Duration
}

// run places the clone and checks that it is alone at its mount point.
func (p *placement) run() error {
	there := p.dead.Ref()
	if p.position == facts.OnDirectory {
		there = p.parent // nothing is mounted at the mount point
	}
	fd, err := p.target.open(there)
	if err != nil {
		return err
	}
	defer closeFD(&fd)
	if err := p.check(fd); err != nil {
		return err
	}
	pause(p.operation + "/checked")
	if err := p.move(fd); err != nil {
		return err
	}
	if p.position == facts.BeneathDead {
		closeFD(&fd) // a descriptor on the dead mount makes it busy, and umount fails
		pause(p.operation + "/beneath")
		return p.detachDead()
	}
	pause(p.operation + "/moved")
	return p.verify()
}

// check finds out all that could refuse before anything is moved. fd is on the dead mount, or on
// the directory of the mount point.
func (p *placement) check(fd int) (err error) {
	if p.position == facts.OnDirectory {
		err = p.checkDirectory(fd)
	} else {
		err = p.checkDead(fd)
	}
	if err == nil && p.onHost && p.position != facts.OnDead {
		var receivers []namespace
		// finalize has to enter them to set the attributes of the copies of ours: else those
		// stay read-only for ever.
		receivers, err = ownedNamespaces(p.parent)
		closeAll(receivers)
	}
	if err == nil && !p.onHost { // there the server asks right before
		err = p.dead.checkAttributes()
	}
	return err
}

// checkDead checks that the dead mount, which is topmost, is alone at the mount point; or, if it is
// to be covered, that it is dead for good. Nothing may be mounted inside it: the umount of the dead
// mount would take that, too.
func (p *placement) checkDead(fd int) error {
	if p.position == facts.OnDead {
		p.parent = p.dead.Ref()
		if err := p.dead.checkFUSE(p.target.thread, fd, facts.MayBeCovered, "only what answers ENOTCONN is covered, and this answers %q"); err != nil {
			return err
		}
	} else if err := p.target.checkStack(p.dead.Ref(), p.parent); err != nil {
		return err
	}
	if p.position == facts.BeneathDead && !p.onHost {
		return nil
	}
	return p.target.checkUncovered(p.dead.Ref(), facts.Ref{})
}

func (p *placement) move(fd int) error {
	p.moved = time.Now()
	switch p.position {
	case facts.OnDirectory:
		return mount.MoveTo(p.clone, p.target.dir, p.target.name)
	case facts.OnDead:
		if err := mount.AddAttr(fd, 0, unix.MS_PRIVATE); err != nil {
			return fmt.Errorf("the dead mount: %w", err)
		}
		pause(p.operation + "/private")
		// By descriptor: on this mount, or nowhere.
		return mount.MoveOnto(p.clone, fd)
	}
	err := mount.MoveBeneath(p.clone, fd)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: the kernel does not let it be replaced: %w", operation.ErrRefused, err)
	}
	return err
}

// detachDead unmounts the dead mount, which is on top of ours. Where the mount point lies on a
// shared mount, the kernel has put copies of ours beneath the copies of the dead mount in other
// mount namespaces, and made those copies peers of ours. An umount on ours propagates to its
// peers: it takes the copies of the dead mount, and nothing else. Where another mount is on one
// of the peers, that would go instead: ours leaves its peer group before the umount, and the
// copies of the dead mount stay.
func (p *placement) detachDead() error {
	if p.moved.IsZero() {
		p.moved = time.Now()
	}
	if !p.onHost {
		if err := p.dead.checkAttributes(); err != nil {
			return err
		}
	}
	// An umount would take or uncover any other mount that is at the mount point.
	if err := p.target.checkStack(p.dead.Ref(), p.ours, p.parent); err != nil {
		return err
	}
	if p.onHost {
		p.left = p.target.checkTakesOnly(p.dead.Ref(), p.dead.isCopy) != nil
	}
	if p.left {
		if err := mount.AddAttr(p.clone, 0, unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	pause(p.operation + "/copies")
	copies := facts.Ref{}
	if !p.onHost {
		copies = p.ours
	}
	if err := p.target.detachTop(p.dead.Ref(), copies); err != nil {
		return err
	}
	p.swapped = time.Since(p.moved)
	pause(p.operation + "/detached")
	if p.left {
		if err := mount.AddAttr(p.clone, 0, unix.MS_SHARED); err != nil {
			return err
		}
	}
	return p.verify()
}

// verify checks that ours is alone at its mount point. Where a driver mounted something at the
// same time, ours is unmounted again: a driver unmounts once, would uncover the other mount and
// delete its files. Ours stays where it replaced the dead mount, as the bare directory would be
// uncovered, and where an earlier call moved it. If the umount fails, ours stays, read-only,
// and the next call unmounts it.
func (p *placement) verify() error {
	err := p.alone()
	if err != nil && p.position != facts.BeneathDead && !p.moved.IsZero() {
		closeFD(&p.clone) // a descriptor on ours makes it busy, and umount fails
		if undoErr := p.target.umount(p.ours); undoErr != nil {
			return fmt.Errorf("%w; taking ours off again: %w", err, undoErr)
		}
	}
	if err == nil {
		pause(p.operation + "/verified")
	}
	return err
}

// alone refuses unless ours is the only mount at its mount point.
func (p *placement) alone() error { return p.target.checkStack(p.ours, p.parent) }

// closeFD closes a descriptor, if it is open.
func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}
