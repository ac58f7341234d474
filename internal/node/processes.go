package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// walks are those over all processes.
type walks struct {
	// walk is Node.walk, but in tests.
	walk    func(context.Context, storage) (ops.ProcessesAnswer, error)
	running singleflight.Group
	// shares limit the milliseconds that each kind takes.
	shares map[storage]*rate.Limiter
	// known and left are for the next daemonWalk, and only a daemonWalk uses them.
	known []facts.FUSEDaemon
	left  []leftWalk
	// last is the last containerWalk that saw all processes.
	last atomic.Pointer[lastWalk]

	mu sync.Mutex
	// peersOf counts the calls that wait for the peers of a FUSE connection's daemons, which a
	// daemonWalk tells of no other one.
	peersOf map[uint64]int
}

// leftWalk is a daemonWalk of which a thread still waits for an open file of a process in one of these
// pods, or cgroup directories outside of pods.
type leftWalk struct {
	pods  []string
	ended <-chan struct{}
}

// maxLeft bounds the workers that walks have left behind: with so many, no daemonWalk begins.
const maxLeft = 8

// lastWalk is what a containerWalk found, and a generation of the mount table from before it.
type lastWalk struct {
	ops.ProcessesAnswer
	generation int
}

func newWalks() walks {
	share := func() *rate.Limiter { return rate.NewLimiter(walkShare, walkBurst) }
	return walks{shares: map[storage]*rate.Limiter{containerWalk: share(), daemonWalk: share()}, peersOf: map[uint64]int{}}
}

// processes returns what a walk over all processes found that began after this call: a containerWalk
// finds the containers, a daemonWalk the FUSE daemons. A daemonWalk reads all open files, of which a
// tenant may have a million, so a containerWalk does not wait for it.
//
// One walk of each kind is made at a time: when a daemon that served many volumes dies, all of these
// ask at once, and a walk costs some 35 us of CPU per process. A worker walks: a file of a process may
// never be read to its end.
func (n *Node) processes(ctx context.Context, kind storage) (a ops.ProcessesAnswer, err error) {
	select {
	case walk := <-n.nextWalk(ctx, kind):
		a, _ = walk.Val.(ops.ProcessesAnswer)
		return a, walk.Err
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// containers returns the containers; with before at least those that started before the present mounts of the
// host came. A walk that began later has found these, so while no mount changes, one walk answers for the
// thousand volumes that a new server sees for the first time. earlier is true for a walk from before this call.
func (n *Node) containers(ctx context.Context, before bool) (a ops.ProcessesAnswer, earlier bool, err error) {
	now, known := n.generation()
	if last := n.walks.last.Load(); before && known && last != nil && last.generation == now {
		return last.ProcessesAnswer, true, nil
	}
	a, err = n.processes(ctx, containerWalk)
	if known && err == nil && !a.Cut {
		n.walks.last.Store(&lastWalk{a, now})
	}
	return a, false, err
}

const (
	// walkShare is for how many milliseconds of each second walks of one kind may go on: beside 100
	// volumes that hang, walks took three quarters of a core from the checks of the others.
	walkShare = 200
	// walkBurst is for how many milliseconds walks may follow each other without a pause, as the few of
	// one heal do.
	walkBurst = 250
	// walkCharge is the most that one walk counts for: on a node with however many processes, the next
	// walk begins after a quarter of a second at the latest.
	walkCharge = 50 * time.Millisecond
)

// nextWalk makes one walk when the walk under way has ended, and hands its answer to all who call until
// it begins. A walk that began before a call does not count for it: a container that started in between
// may be missing. A caller waits until its own deadline; the walk goes on for the others.
func (n *Node) nextWalk(ctx context.Context, kind storage) <-chan singleflight.Result {
	ctx = context.WithoutCancel(ctx) // that the first caller leaves is no answer for the others
	return n.walks.running.DoChan(kind.root, func() (_ any, err error) {
		defer func() {
			if p := recover(); p != nil { // in a goroutine of its own it would end the server
				err = fmt.Errorf("internal error: a panic with a value of type %T", p)
			}
		}()
		var a ops.ProcessesAnswer
		err = n.probes.serialize(ctx, kind, func() (err error) {
			share := n.walks.shares[kind]
			if err := share.Wait(ctx); err != nil {
				return err
			}
			n.walks.running.Forget(kind.root)
			began := time.Now()
			a, err = n.walks.walk(ctx, kind)
			share.ReserveN(time.Now(), int(min(time.Since(began), walkCharge).Milliseconds()))
			return err
		})
		if errors.Is(err, worker.ErrLeft) { // a thread waits for a process that the walk skipped, and counts
			err = nil
		}
		return a, err
	})
}

// walk has a worker walk. CallWithin bounds that: ctx has no deadline.
func (n *Node) walk(ctx context.Context, kind storage) (a ops.ProcessesAnswer, err error) {
	q := ops.ProcessesQuery{Budget: n.cfg.ProbeTimeout / 2}
	if kind == daemonWalk {
		n.walks.mu.Lock()
		q.PeersOf = slices.Collect(maps.Keys(n.walks.peersOf))
		n.walks.mu.Unlock()
		q.Daemons, q.Known = true, n.walks.known
		if q.Skip, err = n.walks.skip(); err != nil {
			return a, err
		}
	}
	for tries := 0; tries == 0 || kind == containerWalk && err == nil && a.Cut && tries < 2; tries++ { // a busy node may have cut one short
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Processes, q)
	}
	if kind == daemonWalk {
		err = n.walks.walked(a, err)
	}
	return a, err
}

// skip returns the pods that still have a thread of an earlier daemonWalk wait. It fails with too many of them.
func (w *walks) skip() (pods []string, err error) {
	w.left = slices.DeleteFunc(w.left, func(l leftWalk) bool { return (&storageCall{ended: l.ended}).over() })
	if len(w.left) == maxLeft {
		return nil, errStorageStuck
	}
	for _, l := range w.left {
		pods = append(pods, l.pods...)
	}
	return pods, nil
}

// walked takes note of a daemonWalk. One that skipped a process which blocked it counts: a tenant that has a
// thread wait keeps its own pod from the next ones, and not those from all others.
func (w *walks) walked(a ops.ProcessesAnswer, err error) error {
	if errors.Is(err, worker.ErrLeft) {
		w.left, err = append(w.left, leftWalk{a.Blocked, ended(err)}), nil
	}
	if err == nil {
		w.known = a.Known
	}
	return err
}
