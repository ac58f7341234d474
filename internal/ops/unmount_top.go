package ops

import (
	"github.com/csi-addons/node-healer/pkg/facts"
)

// unmountTop unmounts a dead mount or a placeholder from the top of a stack. The engine observes
// the volume anew then, and believes that only.
func unmountTop(q facts.UnmountPlan) (none struct{}, err error) {
	target, err := openTarget(q.Top.Path)
	if err != nil {
		return none, err
	}
	defer target.close()
	top := q.Top.Ref()
	if err := target.checkStack(top, q.Below); err != nil {
		return none, err
	}
	dead := Dead{Mount: q.Top, Stale: facts.IsNFS(q.Top.FSType)}
	isCopy := dead.isCopy
	if q.Placeholder {
		isCopy = func(placeholder, m facts.Mount) bool {
			return m.Dev == placeholder.Dev && m.Root == placeholder.Root && m.Placeholder()
		}
	}
	// Where another mount is at the same place on a peer of Below, the umount would take that
	// one. No path leads to Below, so it cannot be made private first, as placement does.
	if err := target.checkTakesOnly(top, isCopy); err != nil {
		return none, err
	}
	if q.Placeholder {
		return none, target.unmountPlaceholder(top)
	}
	if facts.IsType(q.Top.FSType, facts.FUSE|facts.NFS) { // a disk's may have ended and answer
		if err := dead.check(target); err != nil {
			return none, err
		}
	}
	pause("unmount-dead-top/checked")
	if err := target.detachTop(top, facts.Ref{}); err != nil {
		return none, err
	}
	pause("unmount-dead-top/done")
	return none, nil
}

// unmountPlaceholder unmounts the topmost mount if it is the given one and has the attributes of
// a placeholder: no other mount than one of ours is ever unmounted so.
func (h targetHandle) unmountPlaceholder(m facts.Ref) error {
	now, err := h.thread.entry(m)
	if err != nil {
		return err
	}
	if !now.Placeholder() {
		return refuse("the topmost mount is no placeholder")
	}
	pause("unmount-duplicate/checked")
	if err := h.umount(m); err != nil {
		return err
	}
	pause("unmount-duplicate/done")
	return nil
}
