package ops

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// To put a mount at a mount point is one transaction, on the host and in containers:
//
//   - prepare: a clone of a healthy mount gets the attributes that make it safe.
//   - place: it goes to its position, after everything was checked that could refuse.
//   - check: the clone, and nothing else, is what a path walk to the mount point meets.
//   - finalize: it gets its final attributes and propagation, see finalize.
//
// On the host the server asks between check and finalize once more whether the mount
// point is wanted. Until then nothing can be written or deleted through the clone: a
// driver that unpublishes at the same time, and removes the directory tree after a
// umount that came too early, gets EROFS and tries again.

// Position says where a clone goes.
type Position int

const (
	// OnDirectory is the empty directory (or file) at a mount point where nothing is
	// mounted.
	OnDirectory Position = iota
	// Beneath is beneath a dead mount, which is detached then: there is no moment at
	// which nothing is mounted (Linux 6.5).
	Beneath
	// OnTop is on top of a dead mount, where the kernel cannot move a mount beneath
	// another one. Only a mount that never answers again is covered: its FUSE connection
	// is gone (ENOTCONN). It is made private first, or the clone would appear on all of
	// its peers, the staged mount among them. A driver that unpublishes unmounts the
	// clone, meets the dead mount, in which nothing can be deleted, and takes that off
	// when it tries again.
	OnTop
)

// faultPointNames are the names of the fault points of each position.
var faultPointNames = [...]string{OnDirectory: "rebind", Beneath: "replace", OnTop: "cover"}

// PlaceQuery says what to put where.
type PlaceQuery struct {
	facts.RebindPlan
	Position Position
	// Dead is the mount that has to be alone at Target; unused for OnDirectory.
	Dead facts.Mount
}

// PlaceAnswer names the mount now at the mount point.
type PlaceAnswer struct {
	Mount facts.Ref
	// Left is true when another mount namespace has something of its own on top
	// of the mount point, so that what it has there was left as it is.
	Left bool
}

var errNoBeneath = errors.New("the kernel cannot put a mount beneath another one (move_mount with MOVE_MOUNT_BENEATH, Linux 6.5)")

// CanMoveBeneath reports whether the kernel can put a mount beneath another one.
func CanMoveBeneath() bool { return !withoutBeneath() && mount.CanMoveBeneath() }

func place(q PlaceQuery) (a PlaceAnswer, err error) {
	if q.Position == Beneath && !CanMoveBeneath() {
		return a, errNoBeneath
	}
	p := placement{operation: faultPointNames[q.Position], position: q.Position, dead: deadOf(q.Dead), propagates: true}
	p.dead.Ended, p.dead.Stale = q.Ended, q.Stale
	if p.clone, p.ours, err = cloneSource(q.Staged, q.Sub, asPlaceholder); err != nil {
		return a, err
	}
	defer func() { closeFD(&p.clone) }()
	pause(p.operation + "/cloned")
	if p.target, err = openTarget(q.Target); err != nil {
		return a, err
	}
	defer p.target.close()
	if q.Position == Beneath { // OnTop has a check of its own, by descriptor
		if err := p.dead.check(p.target); err != nil {
			return a, err
		}
		if q.Stale {
			if errno := answers(p.clone); errno != 0 {
				return a, refuse("the staged mount answers %q", errno)
			}
		}
	}
	if p.on, err = p.target.parent(); err != nil {
		return a, err
	}
	err = p.run()
	return PlaceAnswer{Mount: p.ours, Left: p.left}, err
}

// placement is a clone on its way to a mount point.
type placement struct {
	operation string // names the fault points
	target    targetHandle
	position  Position
	clone     int // closed, and -1, once it had to be unmounted again
	ours      facts.Ref
	// on is what ours is mounted on in the end: the mount of the directory, or the dead
	// mount that it covers.
	on   facts.Ref
	dead Dead
	// propagates is true where the parent mount may share its events, so that copies of
	// ours appear in other mount namespaces.
	propagates bool
	// copied is true when ours has copies of what is mounted in the dead mount, which
	// therefore may be detached with it.
	copied bool
	// revalidate, if there is one, is asked right before a mount is moved or detached.
	revalidate func() error

	left bool
	// moved is when ours was moved, swapped how long it took from there until the dead
	// mount was detached.
	moved   time.Time
	swapped time.Duration
}

// run places the clone and checks that it is alone at its mount point.
func (p *placement) run() error {
	fd, top, err := p.target.top()
	if err != nil {
		return err
	}
	// As long as it is open, the id of a dead mount is given to no other one.
	defer func() { closeFD(&fd) }()
	if err := p.check(fd, top); err != nil {
		return err
	}
	pause(p.operation + "/checked")
	if err := p.move(fd); err != nil {
		return err
	}
	if p.position == Beneath {
		closeFD(&fd) // it would make the dead mount busy
		pause(p.operation + "/beneath")
		return p.detachDead()
	}
	pause(p.operation + "/moved")
	return p.verify()
}

// check finds out all that could refuse before anything is moved.
func (p *placement) check(fd int, top facts.Ref) (err error) {
	switch p.position {
	case OnDirectory:
		err = p.checkDirectory(fd, top)
	case Beneath, OnTop:
		err = p.checkDead(fd, top)
	}
	if err == nil && p.propagates && p.position != OnTop {
		var receivers []namespace
		receivers, err = ownedNamespaces(p.on) // finalize has to reach them
		closeAll(receivers)
	}
	if err == nil && p.revalidate != nil {
		err = p.revalidate()
	}
	if err == nil && p.position == OnTop {
		if err = mount.AddAttr(fd, 0, unix.MS_PRIVATE); err != nil {
			err = fmt.Errorf("what is dead: %w", err)
		}
	}
	return err
}

// checkDead checks that the dead mount is alone at the mount point, or topmost and dead
// for good if it is to be covered, and that nothing is mounted in it that would be lost.
func (p *placement) checkDead(fd int, top facts.Ref) error {
	if !top.Same(p.dead.Mount) {
		return refuse("%s is at the mount point now", top)
	}
	if p.position == OnTop {
		p.on = p.dead.Mount
		if err := p.dead.checkFUSE(p.target.thread, fd, facts.MayBeCovered, "only what answers ENOTCONN is covered, and this answers %q"); err != nil {
			return err
		}
	} else if err := p.target.checkParent(p.dead.Mount, p.on, "%s is beneath the dead mount"); err != nil {
		return err
	}
	if p.copied {
		return nil
	}
	return p.target.checkUncovered(p.dead.Mount, facts.Ref{})
}

func (p *placement) move(fd int) error {
	p.moved = time.Now()
	switch p.position {
	case OnDirectory:
		return mount.MoveTo(p.clone, p.target.dir, p.target.name)
	case OnTop:
		// By descriptor: on this mount, or nowhere.
		return mount.MoveOnto(p.clone, fd)
	}
	err := mount.MoveBeneath(p.clone, fd)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: the kernel does not let it be replaced: %w", worker.ErrRefused, err)
	}
	return err
}

// detachDead takes the dead mount off ours. Where the mount point lies on a shared
// mount, the kernel has put copies of ours beneath the dead mount's copies in other
// mount namespaces, and made them peers of ours: the umount takes the copies of the
// dead mount too, and nothing else, because ours has no other peers. When one of them
// carries something else, ours leaves its peers before the umount.
func (p *placement) detachDead() error {
	if p.moved.IsZero() {
		p.moved = time.Now()
	}
	if p.revalidate != nil {
		if err := p.revalidate(); err != nil {
			return err
		}
	}
	if err := p.checkStack(); err != nil {
		return err
	}
	if p.propagates {
		others, err := p.dead.notCopies(p.target.thread, p.ours, "")
		p.left = err != nil || len(others) > 0
	}
	if p.left {
		if err := mount.AddAttr(p.clone, 0, unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	pause(p.operation + "/copies")
	copies := facts.Ref{}
	if p.copied {
		copies = p.ours
	}
	if err := p.target.detachTop(p.dead.Mount, copies); err != nil {
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

// checkStack checks that the stack is the dead mount on ours, and no more.
func (p *placement) checkStack() error {
	if err := p.target.checkTop(p.dead.Mount, onTop); err != nil {
		return err
	}
	const too = "%s is at the mount point too"
	if err := p.target.checkParent(p.dead.Mount, p.ours, too); err != nil {
		return err
	}
	return p.target.checkParent(p.ours, p.on, too)
}

// verify checks that ours is alone at its mount point. When something else arrived at
// the same time, ours is unmounted again, unless that would uncover the bare directory
// of a mount that was replaced, or ours was there before; if it cannot be, it stays,
// read-only, and the next call unmounts it.
func (p *placement) verify() error {
	err := p.target.checkAlone(p.ours, p.on)
	if err != nil && p.position != Beneath && !p.moved.IsZero() {
		closeFD(&p.clone) // it would make ours busy
		if undoErr := p.target.unmountTop(p.ours); undoErr != nil {
			return fmt.Errorf("%w; taking ours off again: %w", err, undoErr)
		}
	}
	if err == nil {
		pause(p.operation + "/verified")
	}
	return err
}

// closeFD closes a descriptor, if it is open.
func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}
