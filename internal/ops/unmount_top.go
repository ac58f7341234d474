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
	dead := Dead{q.Top, q.Ended, facts.IsNFS(q.Top.FSType)}
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
		now, err := target.thread.entry(top)
		if err == nil && !now.Placeholder() { // no other mount than one of ours is ever unmounted so
			err = refuse("the topmost mount is no placeholder")
		}
		if err != nil {
			return none, err
		}
		pause("unmount-duplicate/checked")
		if err := target.umount(top); err != nil {
			return none, err
		}
		pause("unmount-duplicate/done")
		return none, nil
	}
	if err := dead.check(target); err != nil {
		return none, err
	}
	pause("unmount-dead-top/checked")
	if err := target.detachTop(top, facts.Ref{}); err != nil {
		return none, err
	}
	pause("unmount-dead-top/done")
	return none, nil
}
