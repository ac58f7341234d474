package host

import (
	"context"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// countWaiting counts the requests that a FUSE daemon has not answered, if a probe of
// the mount is about to run out of time: while the probe still waits, as its own
// request is one of them. count returns the number, 0 for unknown; stop ends
// the counting.
func (n *Node) countWaiting(ctx context.Context, m Mount) (count func() int, stop func()) {
	if !mount.IsType(m.FSType, mount.FUSE) {
		return func() int { return 0 }, func() {}
	}
	counted := make(chan int, 1)
	timer := time.AfterFunc(n.cfg.ProbeTimeout*9/10, func() {
		counted <- max(n.FUSEWaiting(ctx, m.Dev), 0)
	})
	count = sync.OnceValue(func() int {
		if timer.Stop() {
			return 0 // the probe ended before its time
		}
		return <-counted
	})
	return count, func() { count() }
}
