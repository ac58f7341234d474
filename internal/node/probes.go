package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/netfs"
)

// probes has at most one worker ask a storage at a time. Callers that come meanwhile share the worker's
// answer, or wait. A worker that cannot be ended keeps its storage until it ends, and every caller gets
// the answer that the storage hangs: however often a hung volume is checked, it costs one process.
//
// This is no x/sync singleflight: a call outlives its callers here, an answer is
// shared only with callers that asked the same before the probe began, and a storage
// is kept by writes and scans too, whose answers are not shared.
type probes struct {
	mu    sync.Mutex
	calls map[storage]*storageCall
	// slow counts answers in a row that came late.
	slow cache[storage, lateness]
}

func newProbes() *probes {
	return &probes{calls: map[storage]*storageCall{}, slow: newCache[storage, lateness]()}
}

type storageCall struct {
	// mount is the mount that is probed; the zero value for a write.
	mount facts.Mount
	began time.Time
	done  chan struct{}
	// found is the answer, once done is closed; without paths.
	found Inspection
	// ended closes when the worker ends that outlived its deadline; nil when it did not.
	ended <-chan struct{}
}

// join returns the call that is under way at the storage, or makes the caller the
// one that asks: first is true then, and finish must follow.
func (p *probes) join(s storage, mount facts.Mount) (call *storageCall, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if call = p.calls[s]; call != nil && !call.over() {
		return call, false
	}
	call = &storageCall{mount: mount, began: time.Now(), done: make(chan struct{})}
	p.calls[s] = call
	return call, true
}

// finish hands the answer to all waiters. Where err says that the worker cannot be ended, the call stays
// at the storage, and the answer is that the storage does not answer.
func (p *probes) finish(s storage, call *storageCall, found Inspection, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found.Paths = nil
	call.found = found
	if p.calls[s] == call { // another's stuck worker may keep it meanwhile
		delete(p.calls, s)
	}
	if ended := ended(err); ended != nil {
		call.ended = ended
		call.found.Answer.Asked, call.found.Answer.TimedOut, call.found.Answer.Stuck = true, true, true
		call.found.Answer.Outstanding = call.began
		maps.DeleteFunc(p.calls, func(_ storage, other *storageCall) bool { return other.over() })
		p.calls[s] = call
	}
	close(call.done)
}

// over reports whether the stuck worker of a call that stayed at its storage has ended by now.
func (c *storageCall) over() bool {
	select {
	case <-c.ended: // nil, which is never ready, while it is under way
		return true
	default:
		return false
	}
}

// ended returns a channel that closes when the stuck worker behind an error ends; nil when the error is
// of none.
func ended(err error) <-chan struct{} {
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.As(err, &stuck) {
		return nil
	}
	return stuck.Ended()
}

// errStorageStuck has worker.ErrStuck as its leaf, and no end of its own: what is
// stuck is the worker of another call.
var errStorageStuck = fmt.Errorf("nothing was asked, because of an earlier call: %w", worker.ErrStuck)

// serialize runs ask while no other call is at the storage. It fails at once while a
// worker is there that cannot be ended.
func (p *probes) serialize(ctx context.Context, s storage, ask func() error) (err error) {
	call, first := p.join(s, facts.Mount{})
	for !first {
		select {
		case <-call.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if call.found.Answer.Stuck {
			return errStorageStuck
		}
		call, first = p.join(s, facts.Mount{})
	}
	err = worker.ErrLost // if it panics
	defer func() {
		p.finish(s, call, Inspection{Answer: facts.Answer{Waits: waits(err), Elapsed: time.Since(call.began)}}, err)
	}()
	return ask()
}

// unlessStuck runs ask at a storage that many ask at once, and that is never
// serialized. It fails like serialize.
func (p *probes) unlessStuck(s storage, ask func() error) error {
	if p.outstanding(s) != nil {
		return errStorageStuck
	}
	err := ask()
	p.markStuck(s, Inspection{}, err)
	return err
}

// outstanding returns the call that is at a storage, nil for none.
func (p *probes) outstanding(s storage) *storageCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if call := p.calls[s]; call != nil && !call.over() {
		return call
	}
	return nil
}

// markStuck lets the worker behind an error keep the storage until it ends, if it
// cannot be ended, with what that tells about the storage.
func (p *probes) markStuck(s storage, found Inspection, err error) {
	if ended(err) != nil {
		p.finish(s, &storageCall{done: make(chan struct{})}, found, err)
	}
}

// lateness is of one filesystem: device numbers are used again.
type lateness struct {
	fsType, source string
	count          int
}

// late counts an answer and returns how many in a row came late.
func (p *probes) late(m facts.Mount, late bool) int {
	s := storageOf(m)
	if !late {
		p.slow.remove(s)
		return 0
	}
	so, _ := p.slow.get(s)
	if so.fsType != m.FSType || so.source != m.Source {
		so = lateness{fsType: m.FSType, source: m.Source}
	}
	so.count++
	p.slow.add(s, so)
	return so.count
}

// storage is what a probe touches: a superblock, a block device, or a device node,
// which shares the superblock of devtmpfs with all others.
type storage struct {
	dev  facts.Dev
	root string
}

// The storages that are the kernel's own.
var (
	// namespaces are the mount namespaces of containers.
	namespaces = storage{root: "/proc/*/ns/mnt"}
	// containerWalk and daemonWalk are the walks over all processes that find containers and
	// FUSE daemons, abortWalk the one that finds all mounts of one connection.
	containerWalk = storage{root: "/proc/*/cgroup"}
	daemonWalk    = storage{root: "/proc/*/fdinfo"}
	abortWalk     = storage{root: "/proc/*/mountinfo"}
	// mountingWalk is the walk that finds who is about to mount something.
	mountingWalk = storage{root: "/proc/*/cmdline"}
	fusectl      = storage{root: "/sys/fs/fuse/connections"}
)

// lookups is in the storage of questions for a name, one for each FUSE connection.
const lookups = "names"

func storageOf(m facts.Mount) storage {
	s := storage{dev: m.Dev}
	if m.MayBeNode() {
		s.root = m.Root
	}
	return s
}

// rdevKey has the source of a btrfs too: its number goes to the next one, and it may get another disk.
type rdevKey struct {
	storage
	source string
}

func rdevKeyOf(m facts.Mount) rdevKey {
	if m.FSType != "btrfs" {
		return rdevKey{storage: storageOf(m)}
	}
	return rdevKey{storageOf(m), m.Source}
}

// storageUnder returns what a path lies on.
func storageUnder(table Table, p string) storage {
	parentMount, _ := table.ParentMount(p)
	return storageOf(parentMount)
}

// sameView reports whether mounts of one superblock show the same directory of it: an
// export may share its superblock with another, and be gone alone. On NFS only the very
// same mount is sure to.
func sameView(a, b facts.Mount) bool {
	if facts.IsNFS(a.FSType) && !a.Same(b) {
		return false
	}
	return a.Dev == b.Dev && a.Root == b.Root && a.FSType == b.FSType && a.Source == b.Source
}

// serverOf returns the storage that stands for the server of an NFS mount. Mounts whose
// source names none count as one server. Servers on one host differ in their ports: each
// encrypted mount of EFS has a proxy of its own on 127.0.0.1, which may end alone.
func serverOf(m facts.Mount) (server storage, is bool) {
	name := "nfs server " + netfs.Server(m.FSType, m.Source)
	if at := slices.IndexFunc(m.SuperOptions, func(o string) bool { return strings.HasPrefix(o, "port=") }); at >= 0 {
		name += " " + m.SuperOptions[at]
	}
	return storage{root: name}, facts.IsNFS(m.FSType)
}

// errNoTurn says that other calls asked a server that does not answer for as long as
// one may wait.
var errNoTurn = fmt.Errorf("nothing was asked, because others ask the same server: %w", worker.ErrTimeout)

// atServer runs ask, which touches a mount. One NFS server is behind many
// superblocks: after a call without an answer, calls to it are serialized until it
// answers one. A server that answers is asked about all its superblocks side by side,
// and an export that hangs alone delays no call about another.
func (n *Node) atServer(ctx context.Context, m facts.Mount, ask func() error) (err error) {
	server, is := serverOf(m)
	if !is {
		return ask()
	}
	if last, _ := n.answered.get(server); last == wasSilent || n.probes.outstanding(server) != nil {
		wait, cancel := context.WithTimeout(ctx, n.longestProbe())
		defer cancel()
		err = n.probes.serialize(wait, server, ask)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errNoTurn
		}
	} else {
		err = ask()
		n.probes.markStuck(server, Inspection{}, err)
	}
	switch {
	case err == nil:
		n.answered.remove(server)
	case timedOut(ctx, err):
		n.answered.add(server, wasSilent)
	}
	return err
}
