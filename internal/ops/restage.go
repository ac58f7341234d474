package ops

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// What a driver needs that is to stage a volume anew whose FUSE daemon has died: a
// staging path without the dead mounts, and where it fails, a staging path that does not
// look like an empty volume.

// UnmountDeadQuery names all mounts at a staging path.
type UnmountDeadQuery struct {
	Target string
	// Stack are FUSE mounts without a daemon, the topmost first.
	Stack []facts.Mount
}

// unmountDead detaches all mounts at a staging path, each of which has no daemon any more. The
// directory stays as it is, bare: only the driver's call that follows, or mountDead, covers it.
func unmountDead(q UnmountDeadQuery) (none struct{}, err error) {
	target, err := openTarget(q.Target)
	if err != nil {
		return none, err
	}
	defer target.close()
	pause("unmount-dead")
	// Whether mountDead could cover the path again is found out before: on a bare path a pod or
	// the driver would write to the node's disk.
	if _, err := mountDead(MountDeadQuery{Target: q.Target, Before: q.Stack[0], Try: true}); err != nil {
		return none, err
	}
	for _, m := range q.Stack { // all of them, before the first is gone
		if err := (Dead{Mount: m}).checkType(target.thread, facts.FUSE); err != nil {
			return none, err
		}
	}
	for _, m := range q.Stack {
		if err := target.unmountDisconnected(q.Target, Dead{Mount: m}); err != nil {
			return none, err
		}
		pause("unmount-dead/one")
	}
	on, err := target.parent()
	if err == nil {
		err = target.checkTop(on)
	}
	return none, err
}

// unmountDisconnected detaches the topmost mount, if it is the given one and its daemon is gone.
func (h targetHandle) unmountDisconnected(at string, dead Dead) error {
	fd, err := h.open(dead.Ref())
	if err != nil {
		return err
	}
	defer func() { closeFD(&fd) }()
	if err := dead.checkFUSE(h.thread, fd, facts.Disconnected, "only what answers ENOTCONN or ECONNABORTED has no daemon any more, and this answers %q"); err != nil {
		return err
	}
	closeFD(&fd) // a descriptor on the dead mount makes it busy, and umount fails
	below, dir, err := h.below(at, dead.Ref())
	if err != nil {
		return err
	}
	if err := checkTakesOnly(h.thread, dead.Ref(), below, dir, dead.isCopy); err != nil {
		return err
	}
	return h.detachTop(dead.Ref(), facts.Ref{})
}

// below returns the mount that m, at a path, is mounted on, and at which directory below the root
// of that.
func (h targetHandle) below(at string, m facts.Ref) (on facts.Ref, dir string, err error) {
	if on, err = h.thread.parentOf(m); err != nil {
		return on, "", err
	}
	e, err := h.thread.entry(on)
	if err != nil {
		return on, "", err
	}
	return on, strings.TrimPrefix(at, strings.TrimSuffix(e.Path, "/")), nil
}

// MountDeadQuery says what the staging path of a volume is to look like that could not be
// staged.
type MountDeadQuery struct {
	Target string
	// Before is the dead mount that was there, whose type and source the new one shows.
	Before facts.Mount
	// Place is false to only tell what is there.
	Place bool
	// Try makes the mount and checks all that could refuse it on the directory, while dead
	// mounts are still there.
	Try bool
}

// MountDeadAnswer says what is at the path.
type MountDeadAnswer struct {
	// Placed is true if nothing was mounted there, and a FUSE mount without a daemon is
	// now.
	Placed bool
	// Changed is true if another mount than before is there.
	Changed bool
}

// another reports whether a mount is another one than before. Without unique ids (below
// Linux 6.8) it may have got the number of the one that is gone: then only one that answers
// is known to be another.
func (h targetHandle) another(top, before facts.Ref) bool {
	if top.ID != 0 && before.ID != 0 {
		return top.ID != before.ID
	}
	return h.answers() == 0
}

// mountDead mounts a FUSE filesystem without a daemon on an empty directory, so that
// kubelet, the driver and new pods meet ENOTCONN there as before, and no directory of
// the node that takes what they write.
func mountDead(q MountDeadQuery) (a MountDeadAnswer, err error) {
	target, err := openTarget(q.Target)
	if errors.Is(err, unix.ENOENT) {
		return a, nil // the volume was unstaged
	}
	if err != nil {
		return a, err
	}
	defer target.close()
	fd, top, err := target.top()
	if errors.Is(err, unix.ENOENT) {
		return a, nil
	}
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	on, err := target.parent()
	if err != nil {
		return a, err
	}
	switch {
	case q.Try:
	case !top.Same(on):
		return MountDeadAnswer{Changed: target.another(top, q.Before.Ref())}, nil
	case !q.Place:
		return a, nil
	}
	p := placement{operation: "mount-dead", target: target, parent: on, onHost: true}
	if p.clone, err = mount.DeadFUSE(q.Before.FSType, q.Before.Source); err != nil {
		return a, fmt.Errorf("a FUSE mount without a daemon: %w", err)
	}
	defer func() { closeFD(&p.clone) }()
	if p.ours, err = target.thread.refOf(p.clone); err != nil {
		return a, err
	}
	if q.Try {
		return a, p.tryOnDirectory()
	}
	return MountDeadAnswer{Placed: true}, p.run()
}

// tryOnDirectory is check for the directory beneath all mounts at the target. It opens that
// directory in a clone of the mount that it lies on, in which nothing is mounted.
func (p *placement) tryOnDirectory() error {
	above, err := privateClone(p.target.dir)
	if err != nil {
		return err
	}
	defer unix.Close(above)
	fd, err := mount.Open(above, p.target.name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.check(fd)
}
