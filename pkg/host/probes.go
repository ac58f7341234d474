package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// probes keeps at most one worker at each storage. Callers that come while one
// is at it share its answer, or wait. One that cannot be ended is remembered with
// the answer it stands for until it ends: however often a hung volume is asked
// for, it costs one process.
type probes struct {
	mu    sync.Mutex
	under map[storage]*probing
	// slow counts answers in a row that came late. What is forgotten counts from
	// the start.
	slow cache[storage, lateness]
}

func newProbes() *probes {
	return &probes{under: map[storage]*probing{}, slow: newCache[storage, lateness]()}
}

// lateness is of one filesystem: device numbers are used again.
type lateness struct {
	fsType, source string
	count          int
}

// storage is what a probe touches: a superblock, a block device, or a device node,
// which shares the superblock of devtmpfs with all others.
type storage struct {
	dev  Dev
	root string
}

// The storages that are the kernel's own.
var (
	processes = storage{root: "/proc"}
	// namespaces are the mount namespaces of containers, and who runs in them.
	namespaces = storage{root: "/proc/*/ns/mnt"}
	fusectl    = storage{root: "/sys/fs/fuse/connections"}
)

func storageOf(m Mount) storage {
	s := storage{dev: m.Dev}
	if m.MayBeNode() {
		s.root = m.Root
	}
	return s
}

// sameView is true for mounts of one superblock that show the same directory of
// it: an export may share its superblock with another, and be gone alone. On NFS
// only the very same mount is sure to.
func sameView(a, b Mount) bool {
	if IsNFS(a.FSType) && !a.Same(b) {
		return false
	}
	return a.Dev == b.Dev && a.Root == b.Root && a.FSType == b.FSType && a.Source == b.Source
}

// probing is one probe under way.
type probing struct {
	// of is the mount that is looked at; the zero value for a write.
	of    Mount
	began time.Time
	done  chan struct{}
	// What it found, once done; without paths.
	found Inspection
	// ended closes when a worker ends that outlived its deadline; nil when there
	// is none.
	ended <-chan struct{}
}

// join gives the probe that is at the storage, or makes the caller the one who
// asks: first is true then, and finish must follow.
func (p *probes) join(s storage, of Mount) (at *probing, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at = p.under[s]; at != nil && !at.over() {
		return at, false
	}
	at = &probing{of: of, began: time.Now(), done: make(chan struct{})}
	p.enter(s, at)
	return at, true
}

// enter needs the lock.
func (p *probes) enter(s storage, at *probing) {
	p.under[s] = at
}

// finish hands the answer to everybody who waits for it. While a worker is left
// that cannot be ended, the storage is silent.
func (p *probes) finish(s storage, at *probing, found Inspection, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found.Paths = nil
	at.found = found
	delete(p.under, s)
	if ended := ended(err); ended != nil {
		at.ended = ended
		at.found.Answer.Asked, at.found.Answer.Silent, at.found.Answer.Stuck = true, true, true
		maps.DeleteFunc(p.under, func(_ storage, other *probing) bool { return other.over() })
		p.enter(s, at)
	}
	close(at.done)
}

// over is true once the worker has ended that could not be ended.
func (at *probing) over() bool {
	select {
	case <-at.ended: // nil, which is never ready, while it is at work
		return true
	default:
		return false
	}
}

// ended closes when the worker behind an error ends that cannot be ended; nil
// when there is none.
func ended(err error) <-chan struct{} {
	var stuck interface{ Ended() <-chan struct{} }
	if !errors.As(err, &stuck) {
		return nil
	}
	return stuck.Ended()
}

// errStuckThere has worker.ErrStuck as its leaf, and no end of its own: what is
// stuck is the worker of another call.
var errStuckThere = fmt.Errorf("nothing was asked, because of an earlier call: %w", worker.ErrStuck)

// alone has ask run while nobody else is at the storage. It fails at once while a
// worker is there that cannot be ended.
func (p *probes) alone(ctx context.Context, s storage, ask func() error) (err error) {
	at, first := p.join(s, Mount{})
	for !first {
		select {
		case <-at.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if at.found.Answer.Stuck {
			return errStuckThere
		}
		at, first = p.join(s, Mount{})
	}
	err = worker.ErrLost // should it panic
	defer func() {
		p.finish(s, at, Inspection{Answer: Answer{Waits: waits(err), Elapsed: time.Since(at.began)}}, err)
	}()
	return ask()
}

// beside has ask run at a storage that many ask at once, and that nobody is alone
// at. It fails like alone.
func (p *probes) beside(s storage, ask func() error) error {
	if p.left(s) != nil {
		return errStuckThere
	}
	err := ask()
	p.leave(s, Inspection{}, err)
	return err
}

// left gives what is at a storage, nil for nothing.
func (p *probes) left(s storage) *probing {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.under[s]; at != nil && !at.over() {
		return at
	}
	return nil
}

// leave remembers the worker behind an error until it ends, if it cannot be ended,
// with what that says of the storage.
func (p *probes) leave(s storage, found Inspection, err error) {
	if ended(err) != nil {
		p.finish(s, &probing{done: make(chan struct{})}, found, err)
	}
}

// late counts an answer and gives how many in a row came late.
func (p *probes) late(m Mount, late bool) int {
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
