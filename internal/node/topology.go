package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// topology is the mount table as last read. It is good for as long as poll(2) on mountinfo reports
// no change, and serves to find mounts only: no event comes when a filesystem shuts itself down, which
// its options show, or when a directory above a mount point is renamed. So a caller that finds a mount
// here reads it again by its id (Refresh), and takes a mount for absent only after Mounts has read
// everything anew.
type topology struct {
	mu    sync.Mutex
	table Table
	// began is when the reading of the table began.
	began time.Time
	// known is false while the table has to be read, whatever poll(2) says.
	known bool
	// changes counts the polls that reported a change, and the steps.
	changes int
}

// Topology returns the mount table for finding mounts in; their options,
// attributes and propagation are left out. Where the kernel has no unique mount
// ids and sources (below Linux 6.13) it is Mounts.
func (n *Namespace) Topology() (Table, error) {
	if !n.statmount {
		return n.Mounts()
	}
	t, called := &n.topology, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known && t.began.After(called) { // as good as one's own, for all who waited for it
		return t.table, nil
	}
	began := time.Now()
	// A poll tells of a change once, so it comes first, whatever is known.
	if !n.moved() && t.known {
		return t.table, nil
	}
	// For the options of a btrfs the kernel may read its disk, and this process must not wait for that.
	mounts, err := n.list(mount.Everything &^ mount.Options)
	if t.known = err == nil; !t.known {
		return n.Mounts()
	}
	for i := range mounts { // what may change without an event
		m := &mounts[i]
		m.Attr, m.Propagation, m.SuperReadOnly = 0, facts.Propagation{}, false
	}
	t.table, t.began = NewTable(mounts), began
	return t.table, nil
}

// moved reports whether the namespace's mounts changed since it was last asked. Only Topology asks, with
// the lock held: the answer is given once.
func (n *Namespace) moved() bool {
	poll := []unix.PollFd{{Fd: int32(n.changes.Fd()), Events: unix.POLLPRI}}
	events, err := unix.Poll(poll, 0)
	if err == nil && events == 0 {
		return false
	}
	n.topology.changes++
	return true
}

// generation returns another number after a mount came, went or was moved, or a step ended (changed). It is
// not known where Topology is Mounts.
func (n *Namespace) generation() (now int, known bool) {
	if !n.statmount {
		return 0, false // without reading the whole table
	}
	if _, err := n.Topology(); err != nil {
		return 0, false
	}
	n.topology.mu.Lock()
	defer n.topology.mu.Unlock()
	return n.topology.changes, true
}

// changed begins another generation: the kernel does not report that a mount's attributes changed.
func (n *Namespace) changed() {
	n.topology.mu.Lock()
	defer n.topology.mu.Unlock()
	n.topology.changes++
}

// forget makes the next Topology read everything.
func (t *topology) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Refresh reads mounts that were found in the topology again. It is false when one of
// them is gone or was moved: the next Topology reads everything then.
func (n *Namespace) Refresh(stack []facts.Mount) ([]facts.Mount, bool) {
	if !n.statmount {
		return stack, true // just read
	}
	fresh := make([]facts.Mount, len(stack))
	for i, m := range stack {
		fields := mount.Everything
		if m.FSType == "btrfs" { // as in Topology
			fields &^= mount.Options
		}
		status, err := mount.Stat(n.id, m.ID, fields)
		now := status.Mount
		if err != nil || now.Path != m.Path || now.OldParent != m.OldParent {
			n.topology.forget()
			return nil, false
		}
		fresh[i] = now
	}
	return fresh, true
}

// IsTop reports whether a path walk to the mount point of m ends on m.
func (n *Namespace) IsTop(m facts.Mount) bool {
	table, err := n.Topology()
	if err != nil {
		return false
	}
	stack := table.Stack(m.Path)
	top := len(stack) > 0 && stack[0].Same(m)
	if !top {
		n.topology.forget() // a directory above may have been renamed, of which no event tells
	}
	return top
}

// Changes returns a channel that gets a value after mounts came, went or were moved,
// and closes after ctx has ended. All changes until the value is taken are one, so that
// who takes them slowly is told rarely. One caller at a time, until the channel closes.
func (n *Namespace) Changes(ctx context.Context) (<-chan struct{}, error) {
	ended, end, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch the mount table: %w", err)
	}
	wake := context.AfterFunc(ctx, func() { _ = end.Close() })
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		defer ended.Close()
		defer func() {
			if wake() {
				_ = end.Close()
			}
		}()
		for ctx.Err() == nil {
			poll := []unix.PollFd{{Fd: int32(n.watched.Fd()), Events: unix.POLLPRI}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
			_, err := unix.Poll(poll, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || poll[0].Revents&unix.POLLNVAL != 0 {
				return
			}
			select {
			case changed <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return changed, nil
}
