package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

// ContainerSwap says what comes instead of a mount in a container.
type ContainerSwap struct {
	Container ContainerMount
	// Source is the healthy mount on the host, Sub the directory or file below its
	// root that the container has.
	Source Mount
	Sub    string
	// Attr are the attributes that it is to have.
	Attr Attr
	// Sharing is how it is to share mount events.
	Sharing Sharing
	// Ours is what an interrupted replacement left, the mount itself or beneath it,
	// Stray what it left on top of the dead mount; zero for none.
	Ours, Stray Mount
	// Ended is true for a dead filesystem that answers all the same, Stale for one of
	// NFS that must answer ESTALE.
	Ended, Stale bool
	// Covers is the dead mount that it goes on top of, where it cannot come beneath.
	Covers Mount
}

// ReplaceInContainers replaces mounts in containers, each as a whole or not at all. It
// returns an error, or nil, for each: nil means that the container's own path answered.
func (n *Node) ReplaceInContainers(ctx context.Context, plans []ContainerSwap) []error {
	errs := make([]error, len(plans))
	q := ops.ReplaceInContainersQuery{Budget: n.cfg.StepTimeout / 2}
	for _, p := range plans {
		t := p.Container.target()
		t.Swap = p.swap()
		q.Targets = append(q.Targets, t)
	}
	results, err := n.inContainer(ctx, q)
	// A thread left behind in one of the namespaces: the others have their answers.
	left := errors.Is(err, worker.ErrLeft) && len(results) == len(plans)
	for i := range plans {
		switch {
		case err != nil && (!left || results[i].TimedOut):
			errs[i] = err
		case results[i].Refused:
			errs[i] = fmt.Errorf("%w: %s", ErrRefused, strings.TrimPrefix(results[i].Err, ErrRefused.Error()+": "))
		case results[i].Err != "":
			errs[i] = errors.New(results[i].Err)
		case results[i].Errno != 0:
			errs[i] = fmt.Errorf("replaced, and it does not answer: %w", results[i].Errno)
		}
	}
	return errs
}

// inContainer asks one worker, with a thread for each namespace.
func (n *Node) inContainer(ctx context.Context, q ops.ReplaceInContainersQuery) ([]ops.InContainerResult, error) {
	const perNamespace = 50 * time.Millisecond // most take a hundredth of it
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout+time.Duration(len(q.Targets))*perNamespace)
	defer cancel()
	results, err := worker.Call(call, n.cfg.Pool, ops.ReplaceInContainers, q)
	if err == nil && len(results) != len(q.Targets) {
		err = errors.New("the worker left out a container")
	}
	return results, err
}

func (c ContainerMount) target() ops.InContainerTarget {
	return ops.InContainerTarget{PID: c.PID, Namespace: c.Namespace, Path: c.Mount.Path, Mount: c.Mount.Ref(), Attr: c.Mount.Attr}
}
