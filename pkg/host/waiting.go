package host

import (
	"context"
	"fmt"
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

// fuseConnection returns a connection's directory in fusectl, in the host's mount
// namespace. It is named after the superblock's device number as the kernel
// keeps it (fs/fuse/control.c): the minor, but for fuseblk.
func fuseConnection(dev Dev) string {
	return fmt.Sprintf("/sys/fs/fuse/connections/%d", FUSEConnectionNumber(dev))
}

// FUSEConnectionNumber returns the name of a superblock's connection in fusectl.
func FUSEConnectionNumber(dev Dev) uint64 { return uint64(dev.Major)<<20 | uint64(dev.Minor) }
