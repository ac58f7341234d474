package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// walks makes one walk over all processes at a time: when a daemon that served many
// volumes dies, all of them are asked about at once, and a walk costs some 35 us of CPU
// per process. Callers that wait for one share the next: what began before they asked may
// lack what they have to see. The server reads no file of a process; a worker does.
type walks[A any] struct {
	// Only the call that is serialized at the walk's storage uses these.
	began time.Time
	last  A
	err   error
}

// all returns the answer of a walk that began after it was called.
func (w *walks[A]) all(ctx context.Context, n *Node, at storage, walk func() (A, error)) (last A, err error) {
	asked := time.Now()
	err = n.probes.serialize(ctx, at, func() error {
		if last, err = w.last, w.err; w.began.After(asked) {
			return err
		}
		began := time.Now()
		last, err = walk()
		switch {
		case err == nil || errors.Is(err, worker.ErrLeft):
			w.began, w.last, w.err = began, last, err
		case ctx.Err() == nil: // a caller's cancellation is no answer for others
			w.began, w.err = began, err
		}
		return err
	})
	return last, err
}

// walkContainers finds the containers that run.
func (n *Node) walkContainers(ctx context.Context) (ops.ContainersAnswer, error) {
	return n.containers.all(ctx, n, containerWalk, func() (last ops.ContainersAnswer, err error) {
		for tries := 0; tries == 0 || err == nil && last.Cut && tries < 2; tries++ { // a busy node may have cut one short
			err = n.probes.unlessStuck(namespaces, func() (err error) {
				last, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Containers, ops.ContainersQuery{Budget: n.cfg.ProbeTimeout / 2})
				return err
			})
		}
		return last, err
	})
}

// Running returns the running containers of pods, but for those that only keep a pod's
// namespaces, and one without a name if not all processes could be read.
func (n *Node) Running(ctx context.Context, pods []string) (found []facts.Container, err error) {
	walk, err := n.walkContainers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range walk.Containers {
		if slices.Contains(pods, c.PodUID) && !c.Pause {
			found = append(found, c)
		}
	}
	if walk.Cut {
		found = append(found, facts.Container{})
	}
	return found, nil
}
