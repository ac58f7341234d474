package ops

import "github.com/csi-addons/node-healer/pkg/facts"

// UnmountDeadTopQuery names a dead mount on top of a stack, and what it hides.
type UnmountDeadTopQuery struct {
	// Dead is the topmost mount.
	Dead facts.Mount
	// Below is the mount of the volume right beneath Dead. It stays, and is what processes
	// meet then.
	Below facts.Ref
}

// unmountDeadTop unmounts a dead mount from the top of a stack.
func unmountDeadTop(q UnmountDeadTopQuery) (done bool, err error) {
	dead := deadOf(q.Dead)
	dead.Stale = facts.IsType(q.Dead.FSType, facts.NFS)
	target, err := openTarget(q.Dead.Path)
	if err != nil {
		return false, err
	}
	defer target.close()
	if err := target.checkTop(dead.Mount, topmost); err != nil {
		return false, err
	}
	if err := target.checkParent(dead.Mount, q.Below, "%s is beneath the dead mount now"); err != nil {
		return false, err
	}
	// Where another mount is at the same place on a peer of Below, the umount would take that
	// one. No path leads to Below, so it cannot be made private first, as placement does.
	others, err := dead.notCopies(target.thread, q.Below, "")
	if err != nil {
		return false, err
	}
	if len(others) > 0 {
		return false, refuse("the umount would also take what is mounted on %q in a mount namespace", others[0].Path)
	}
	if facts.IsType(q.Dead.FSType, facts.FUSE|facts.NFS) { // a disk's may have ended and answer
		if err := dead.check(target); err != nil {
			return false, err
		}
	}
	pause("unmount-dead-top/checked")
	if err := target.detachTop(dead.Mount, facts.Ref{}); err != nil {
		return false, err
	}
	pause("unmount-dead-top/done")
	return true, nil
}
