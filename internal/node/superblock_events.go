package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// maxFollowed bounds the descriptors of daemons.
const maxFollowed = 1024

// SuperblockEvent says to what something happened.
type SuperblockEvent struct {
	Dev facts.Dev
	// Driver is set instead where a CSI driver made a socket: it is back.
	Driver string
}

// SuperblockEvents tells when something happens to a superblock that no mount table shows: a
// process that serves it over FUSE ends (pidfd_open(2)). It also tells of drivers that listen
// again. An event is a hint and no fact: the volume is checked then. Make it with
// Node.SuperblockEvents.
type SuperblockEvents struct {
	node *Node
	// done closes at the end.
	done <-chan struct{}
	told chan SuperblockEvent
	// waiting has the goroutines that tell: one for each daemon, and one for the drivers.
	waiting sync.WaitGroup

	mu sync.Mutex
	// followed has the pidfds of the daemons. They are in the Go runtime's own epoll, so that no
	// thread waits for them. It is nil after the end.
	followed map[source]*os.File
	drivers  driverEvents
}

// source is a daemon that tells of a superblock by its end.
type source struct {
	dev     facts.Dev
	pid     int
	started time.Duration
}

// SuperblockEvents follows nothing yet. It lives until ctx ends; then the channel of
// Events closes.
func (n *Node) SuperblockEvents(ctx context.Context) *SuperblockEvents {
	e := &SuperblockEvents{node: n, done: ctx.Done(), told: make(chan SuperblockEvent), followed: map[source]*os.File{}}
	var err error
	if e.drivers, err = openDriverEvents(n.cfg.KubeletRoot); err != nil {
		klog.ErrorS(err, "Drivers that come back are not noticed")
	} else {
		e.waiting.Go(e.waitForDrivers)
	}
	context.AfterFunc(ctx, e.end)
	return e
}

// Events returns the channel that tells of superblocks.
func (e *SuperblockEvents) Events() <-chan SuperblockEvent { return e.told }

// tell passes an event on, unless nobody takes it any more.
func (e *SuperblockEvents) tell(event SuperblockEvent) {
	select {
	case e.told <- event:
	case <-e.done:
	}
}

// waitForDrivers passes on what inotify tells until ctx ends.
func (e *SuperblockEvents) waitForDrivers() {
	buf := make([]byte, 8<<10)
	for {
		n, err := e.drivers.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			klog.ErrorS(err, "Drivers that come back are not noticed any more")
			return
		}
		e.mu.Lock()
		back := e.drivers.madeBy(buf[:n])
		e.mu.Unlock()
		for driver := range back {
			e.tell(SuperblockEvent{Driver: driver})
		}
	}
}

// Follow has the superblocks of these mounts followed and no others. It walks over the
// processes in a worker if any is FUSE's, and touches no volume. What cannot be followed,
// as FUSE below about Linux 6.16, is left out. When the walk fails, the daemons that are known
// are followed nevertheless. An event comes, too, when one of the drivers makes a socket in its
// directory.
func (e *SuperblockEvents) Follow(ctx context.Context, mounts []facts.Mount, drivers []string) error {
	wanted, err := e.daemons(ctx, mounts)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.followed == nil {
		return err // ended
	}
	for s := range e.followed {
		if !slices.Contains(wanted, s) {
			e.forget(s)
		}
	}
	for _, s := range wanted {
		if _, already := e.followed[s]; !already {
			e.add(s)
		}
	}
	if e.drivers.file != nil {
		err = errors.Join(err, e.drivers.follow(e.node.cfg.KubeletRoot, drivers))
	}
	return err
}

// daemons returns the daemons of the connections of these mounts. Those that are followed already go on to
// be until their end is told: the walk may find one gone first, or not examine it.
func (e *SuperblockEvents) daemons(ctx context.Context, mounts []facts.Mount) (daemons []source, err error) {
	byConnection := map[uint64]facts.Dev{}
	for _, m := range mounts {
		if facts.IsType(m.FSType, facts.FUSE) {
			byConnection[m.Dev.FUSEConnection()] = m.Dev
		}
	}
	if len(byConnection) == 0 {
		return nil, nil
	}
	walk, err := e.node.processes(ctx, daemonWalk)
	if err != nil {
		err = fmt.Errorf("follow daemons: %w", err)
	}
	for _, d := range walk.Daemons {
		if dev, ours := byConnection[d.Connection]; ours {
			daemons = append(daemons, source{dev: dev, pid: d.PID, started: d.Started})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.followed {
		if _, ours := byConnection[s.dev.FUSEConnection()]; ours && !slices.Contains(daemons, s) {
			daemons = append(daemons, s)
		}
	}
	return daemons[:min(len(daemons), maxFollowed)], err
}

// add follows a daemon. It may have ended since it was found, and its number be another process's:
// that costs one check more, or has the volume checked at its next turn only.
func (e *SuperblockEvents) add(s source) {
	fd, err := unix.PidfdOpen(s.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	e.followed[s] = pidfd
	e.waiting.Go(func() {
		ended := ends(pidfd)
		e.mu.Lock()
		followed := e.followed[s] == pidfd
		if followed {
			e.forget(s) // also where the pidfd cannot be waited for: then it is tried again
		}
		e.mu.Unlock()
		if ended && followed {
			e.tell(SuperblockEvent{Dev: s.dev})
		}
	})
}

// ends waits for the end of a process; it is false when the pidfd is closed first.
func ends(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	return err == nil && conn.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}) == nil
}

// forget ends the wait for a daemon.
func (e *SuperblockEvents) forget(s source) {
	_ = e.followed[s].Close()
	delete(e.followed, s)
}

// end closes all descriptors, and then, when no goroutine is left that tells, the channel.
func (e *SuperblockEvents) end() {
	e.mu.Lock()
	for s := range e.followed {
		e.forget(s)
	}
	e.followed = nil
	_ = e.drivers.file.Close() // nothing if it is nil
	e.mu.Unlock()
	e.waiting.Wait()
	close(e.told)
}
