package ops

import (
	"errors"
	"fmt"

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
	if err := target.checkMountDead(q.Stack[0]); err != nil {
		return none, err
	}
	for _, m := range q.Stack { // all of them, before the first is gone
		if err := (Dead{Mount: m}).checkType(target.thread, facts.FUSE); err != nil {
			return none, err
		}
	}
	for _, m := range q.Stack {
		dead := Dead{Mount: m}
		fd, err := target.open(m.Ref())
		if err != nil {
			return none, err
		}
		err = dead.checkFUSE(target.thread, fd, facts.Disconnected, "only what answers ENOTCONN or ECONNABORTED has no daemon any more, and this answers %q")
		if m.ID != 0 {
			closeFD(&fd) // a descriptor on the dead mount makes it busy, and umount fails
		}
		// Below Linux 6.8 the umount is lazy, and the descriptor keeps the id of the dead mount: a
		// driver that has mounted a living one there meanwhile would get the same.
		if err == nil {
			err = target.checkTakesOnly(m.Ref(), dead.isCopy)
		}
		if err == nil {
			err = target.detachTop(m.Ref(), facts.Ref{})
		}
		closeFD(&fd)
		if err != nil {
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

// checkMountDead checks all that could refuse a mount of mountDead. The directory beneath all mounts
// at the target is opened in a clone of the mount that it lies on, in which nothing is mounted.
func (h targetHandle) checkMountDead(before facts.Mount) error {
	p, err := newDeadMount(h, before)
	if err != nil {
		return err
	}
	defer closeFD(&p.clone)
	above, err := privateClone(h.dir)
	if err != nil {
		return err
	}
	defer unix.Close(above)
	fd, err := mount.Open(above, h.name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.check(fd)
}

// MountDeadQuery says what the staging path of a volume is to look like that could not be
// staged.
type MountDeadQuery struct {
	Target string
	// Before is the dead mount that was there, whose type and source the new one shows.
	Before facts.Mount
	// Place is false to only tell what is there.
	Place bool
}

// MountDeadAnswer says what is at the path.
type MountDeadAnswer struct {
	// Placed is true if nothing was mounted there, and a FUSE mount without a daemon is
	// now.
	Placed bool
	// Changed is true if another mount than before is there.
	Changed bool
}

// mountDead mounts a FUSE filesystem without a daemon on an empty directory, so that
// kubelet, the driver and new pods meet ENOTCONN there as before, and no directory of
// the node that takes what they write.
func mountDead(q MountDeadQuery) (a MountDeadAnswer, err error) {
	target, err := openTarget(q.Target)
	fd, top := -1, facts.Ref{}
	if err == nil {
		defer target.close()
		fd, top, err = target.top()
	}
	if errors.Is(err, unix.ENOENT) {
		return a, nil // the volume was unstaged
	}
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	on, err := target.parent()
	if err != nil {
		return a, err
	}
	if !top.Same(on) {
		a.Changed = top.ID != q.Before.ID
		if top.ID == 0 || q.Before.ID == 0 {
			// Below Linux 6.8 it may have got the number of the one that is gone: then only one
			// that answers is known to be another.
			a.Changed = target.answers() == 0
		}
		return a, nil
	}
	if !q.Place {
		return a, nil
	}
	p, err := newDeadMount(target, q.Before)
	if err != nil {
		return a, err
	}
	defer closeFD(&p.clone)
	return MountDeadAnswer{Placed: true}, p.run()
}

// newDeadMount makes a FUSE mount without a daemon that is to be placed on the directory of the
// target. Its type and source are those of a mount that was there before.
func newDeadMount(target targetHandle, before facts.Mount) (p *placement, err error) {
	p = &placement{operation: "mount-dead", target: target, onHost: true}
	if p.parent, err = target.parent(); err != nil {
		return nil, err
	}
	if p.clone, err = mount.DeadFUSE(before.FSType, before.Source); err != nil {
		return nil, fmt.Errorf("a FUSE mount without a daemon: %w", err)
	}
	if p.ours, err = target.thread.refOf(p.clone); err != nil {
		closeFD(&p.clone)
		return nil, err
	}
	return p, nil
}
