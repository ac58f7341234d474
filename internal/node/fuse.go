package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// FUSEDaemons finds who serves a superblock. It touches no volume.
func (n *Node) FUSEDaemons(ctx context.Context, dev facts.Dev) (facts.FUSEDaemons, error) {
	connection := dev.FUSEConnection()
	n.wantPeers(connection, 1)
	defer n.wantPeers(connection, -1)
	walk, err := n.processes(ctx, daemonWalk)
	if err != nil {
		return facts.FUSEDaemons{}, fmt.Errorf("who serves it: %w", err)
	}
	found := facts.FUSEDaemons{Untold: walk.Untold > 0, Unseen: walk.Unread, Cut: walk.Cut, Peers: walk.Peers[connection]}
	if of, known := walk.UnreadOf[connection]; known {
		found.Unseen = of
	}
	for _, d := range walk.Daemons {
		if d.Connection == connection {
			found.Processes = append(found.Processes, d)
		}
	}
	return found, nil
}

func (n *Node) wantPeers(connection uint64, calls int) {
	n.walks.mu.Lock()
	defer n.walks.mu.Unlock()
	if n.walks.peersOf[connection] += calls; n.walks.peersOf[connection] == 0 {
		delete(n.walks.peersOf, connection)
	}
}

// maxWaiting is in bytes: more than any number has.
const maxWaiting = 32

// FUSEWaiting returns how many requests a FUSE daemon has not answered, -1 for unknown.
func (n *Node) FUSEWaiting(ctx context.Context, dev facts.Dev) int {
	call, cancel := context.WithTimeout(ctx, n.cfg.ProbeTimeout)
	defer cancel()
	waiting := -1
	_ = n.probes.serialize(call, fusectl, func() error { // without an answer nothing is known
		text, err := worker.Call(call, n.cfg.Pool, ops.ReadFile, ops.ReadFileQuery{
			Dir: fusectl.root, Name: fmt.Sprintf("%d/waiting", dev.FUSEConnection()), Limit: maxWaiting,
		})
		if number, parseErr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && parseErr == nil {
			waiting = number
		}
		return err
	})
	return waiting
}

// MayAbortFUSE fails with ErrRefused where AbortFUSE must not run: where more than the
// volume's mounts have the connection, as far as the mount namespaces can be read.
func (n *Node) MayAbortFUSE(ctx context.Context, plan facts.AbortPlan) error {
	plan.CheckOnly = true
	return n.abortFUSE(ctx, plan, func(context.Context) error { return nil })
}

// AbortFUSE ends a connection for good: what waits fails, and what was not written yet is
// lost. It waits for the worker that may have waited for the daemon.
func (n *Node) AbortFUSE(ctx context.Context, plan facts.AbortPlan, revalidate func(context.Context) error) error {
	if err := n.abortFUSE(ctx, plan, revalidate); err != nil {
		return err
	}
	for end := time.Now().Add(abortGrace); n.probes.outstanding(storageOf(plan.Mount)) != nil && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(abortPoll)
	}
	return nil
}

// abortGrace is how long after the abort a worker may take to end, on a busy node, too: until then the
// connection's mounts pass for hung.
const (
	abortGrace = 2 * time.Second
	abortPoll  = 5 * time.Millisecond
)

// abortFUSE revalidates when its turn has come: the walks of other volumes may have
// taken long.
func (n *Node) abortFUSE(ctx context.Context, plan facts.AbortPlan, revalidate func(context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout)
	defer cancel()
	return n.probes.serialize(call, abortWalk, func() error {
		if err := revalidate(call); err != nil {
			return err
		}
		_, err := worker.Call(call, n.cfg.Pool, ops.AbortFUSE, plan)
		return err
	})
}

// LookUp asks the daemon of a FUSE mount for a name that cannot exist: one question at a time
// for each connection, and none while the daemon owes an answer to others, or that is not
// known, as the kernel may hold the lock of the root directory until it comes.
func (n *Node) LookUp(ctx context.Context, m facts.Mount) (l facts.Lookup, err error) {
	err = n.probes.serialize(ctx, storage{dev: m.Dev, root: lookups}, func() error {
		if !n.fuseIdle(ctx, m.Dev) {
			return nil
		}
		q := ops.ProbeQuery{Path: m.Path, Superblock: m.Dev, Around: n.fewBeside(m)}
		l, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.LookUp, q)
		return err
	})
	if timedOut(ctx, err) { // also where an earlier question has no answer yet
		return facts.Lookup{Asked: true, TimedOut: true, Within: n.cfg.ProbeTimeout}, nil
	}
	return l, err
}

// fuseIdle reports whether a daemon owes no answer, at one of a few looks: one that is used
// all the time owes one at most of them.
func (n *Node) fuseIdle(ctx context.Context, dev facts.Dev) bool {
	const looks, pause = 5, 10 * time.Millisecond
	for range looks {
		if n.FUSEWaiting(ctx, dev) == 0 {
			return true
		}
		time.Sleep(pause)
	}
	return false
}
