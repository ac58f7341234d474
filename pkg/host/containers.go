package host

import (
	"context"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// containerWalks finds the containers, by one walk over all processes at a time:
// when a daemon that served many volumes dies, all of them are asked about at
// once, and a walk costs some 35 us of CPU per process. Callers that wait for one share
// the next: what began before they asked may lack a container that they have to see.
type containerWalks struct {
	// Only the call that is serialized at containerWalk uses these.
	began time.Time
	last  workerops.ContainersAnswer
	err   error
}

// all has a worker walk over the processes; the server reads no file of theirs.
func (w *containerWalks) all(ctx context.Context, n *Node) (workerops.ContainersAnswer, error) {
	asked := time.Now()
	var last workerops.ContainersAnswer
	err := n.probes.serialize(ctx, containerWalk, func() (err error) {
		if last, err = w.last, w.err; !w.began.After(asked) {
			last, err = w.walk(ctx, n)
		}
		return err
	})
	return last, err
}

func (w *containerWalks) walk(ctx context.Context, n *Node) (last workerops.ContainersAnswer, err error) {
	began := time.Now()
	for tries := 0; tries == 0 || err == nil && last.Cut && tries < 2; tries++ { // a busy node may have cut one short
		err = n.probes.unlessStuck(namespaces, func() (err error) {
			last, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Containers, workerops.ContainersQuery{Budget: n.cfg.ProbeTimeout / 2})
			return err
		})
	}
	if ctx.Err() == nil { // a caller's cancellation is no answer for others
		w.began, w.last, w.err = began, last, err
	}
	return last, err
}

// Running is a container that runs.
type Running struct {
	// PodUID and ContainerID are empty where no one container is meant.
	PodUID, ContainerID string
	// Started is when it did, in time since the boot.
	Started time.Duration
}

// Running returns the running containers of pods, but for those that only keep a pod's
// namespaces, and one without a name if not all processes could be read.
func (n *Node) Running(ctx context.Context, pods []string) (found []Running, err error) {
	walk, err := n.containers.all(ctx, n)
	if err != nil {
		return nil, err
	}
	for _, c := range walk.Containers {
		if slices.Contains(pods, c.PodUID) && !c.Pause {
			found = append(found, Running{c.PodUID, c.ContainerID, c.Started})
		}
	}
	if walk.Cut {
		found = append(found, Running{})
	}
	return found, nil
}
