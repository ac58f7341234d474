package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// epoll has all followed descriptors. It is in the Go runtime's own epoll, so that no
	// thread waits for it.
	epoll *os.File
	told  chan SuperblockEvent

	mu sync.Mutex
	// followed are the descriptors in epoll.
	followed map[source]descriptor
	// lastKey is the key of the descriptor that was added last.
	lastKey int32
	drivers driverEvents
}

// descriptor is one in epoll. Its events carry the key, and not the number fd: by the time that an
// event is read, the descriptor may be closed, and its number be another one's.
type descriptor struct {
	fd  int
	key int32
}

// driversKey is the key of driverEvents. Those of daemons are positive.
const driversKey = 0

// source is a daemon that tells of a superblock by its end.
type source struct {
	dev     facts.Dev
	pid     int
	started time.Duration
}

// SuperblockEvents follows nothing yet. It lives until ctx ends; then the channel of
// Events closes.
func (n *Node) SuperblockEvents(ctx context.Context) (*SuperblockEvents, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("follow superblocks: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that os.NewFile hands it to the runtime
		return nil, fmt.Errorf("follow superblocks: %w", err)
	}
	e := &SuperblockEvents{
		node: n, epoll: os.NewFile(uintptr(fd), "superblock events"), told: make(chan SuperblockEvent),
		followed: map[source]descriptor{},
	}
	if e.drivers, err = openDriverEvents(n.cfg.KubeletRoot); err == nil {
		err = e.watch(descriptor{e.drivers.fd, driversKey})
	}
	if err != nil {
		klog.ErrorS(err, "Drivers that come back are not noticed")
	}
	stop := context.AfterFunc(ctx, func() { _ = e.epoll.SetReadDeadline(time.Now()) })
	go func() {
		defer close(e.told)
		defer e.end()
		defer stop()
		e.wait(ctx)
	}()
	return e, nil
}

// Events returns the channel that tells of superblocks.
func (e *SuperblockEvents) Events() <-chan SuperblockEvent { return e.told }

// wait passes on what the kernel tells until ctx ends.
func (e *SuperblockEvents) wait(ctx context.Context) {
	conn, err := e.epoll.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 64)
	for ctx.Err() == nil {
		ready := 0
		if err := conn.Read(func(fd uintptr) bool {
			ready, _ = unix.EpollWait(int(fd), events, 0) //nolint:errcheck // then nothing is ready
			return ready > 0
		}); err != nil {
			return // the deadline: ctx has ended
		}
		for event := range e.happened(events[:ready]) {
			select {
			case e.told <- event:
			case <-ctx.Done():
				return
			}
		}
	}
}

// happened returns which superblocks and drivers epoll's events are about. A process ends once, so its
// descriptor is closed.
func (e *SuperblockEvents) happened(events []unix.EpollEvent) map[SuperblockEvent]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := map[SuperblockEvent]bool{}
	for _, event := range events {
		if event.Fd == driversKey {
			maps.Copy(told, e.drivers.read())
		}
		for s, d := range e.followed {
			if d.key == event.Fd {
				told[SuperblockEvent{Dev: s.dev}] = true
				e.forget(s)
			}
		}
	}
	return told
}

// Follow has the superblocks of these mounts followed and no others. It walks over the
// processes in a worker if any is FUSE's, and touches no volume. What cannot be followed,
// as FUSE below about Linux 6.16, is left out. When the walk fails, the daemons that are known
// are followed nevertheless.
func (e *SuperblockEvents) Follow(ctx context.Context, mounts []facts.Mount) error {
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
	return err
}

// FollowDrivers has it told when one of these drivers makes a socket in its directory.
func (e *SuperblockEvents) FollowDrivers(drivers []string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.followed == nil || e.drivers.fd < 0 {
		return nil // ended, or told of no driver
	}
	return e.drivers.follow(e.node.cfg.KubeletRoot, drivers)
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
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return
	}
	e.lastKey++
	d := descriptor{fd, e.lastKey}
	if err := e.watch(d); err != nil {
		_ = unix.Close(fd)
		return
	}
	e.followed[s] = d
}

// watch puts a descriptor into epoll.
func (e *SuperblockEvents) watch(d descriptor) error {
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var added error
	err = raw.Control(func(ep uintptr) {
		added = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, d.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: d.key}) // the kernel does not read it
	})
	return errors.Join(err, added)
}

// forget closes a source, which takes it out of epoll: no other descriptor refers to it.
func (e *SuperblockEvents) forget(s source) {
	_ = unix.Close(e.followed[s].fd)
	delete(e.followed, s)
}

func (e *SuperblockEvents) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.followed {
		e.forget(s)
	}
	e.followed = nil
	if e.drivers.fd >= 0 {
		_ = unix.Close(e.drivers.fd)
	}
	_ = e.epoll.Close()
}
