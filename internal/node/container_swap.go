package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ReplaceInContainers replaces mounts in containers, each as a whole or not at all. It returns an error
// for each plan; nil means that the container's path answers with the new mount.
func (n *Node) ReplaceInContainers(ctx context.Context, plans []facts.ContainerSwap) []error {
	errs := make([]error, len(plans))
	const perNamespace = 50 * time.Millisecond // most take a hundredth of it
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout+time.Duration(len(plans))*perNamespace)
	defer cancel()
	// One worker, with a thread for each namespace.
	results, err := worker.Call(call, n.cfg.Pool, ops.ReplaceInContainers, ops.ReplaceInContainersQuery{Swaps: plans, Budget: n.cfg.StepTimeout / 2})
	if err == nil && len(results) != len(plans) {
		err = errAnswers
	}
	// With ErrLeft a thread waits in one of the namespaces: its mounts may still be changed, and
	// have TimedOut. The answers for the other namespaces hold.
	left := errors.Is(err, worker.ErrLeft) && len(results) == len(plans)
	for i := range plans {
		switch {
		case err != nil && (!left || results[i].TimedOut):
			errs[i] = err
		case results[i].Refused:
			errs[i] = fmt.Errorf("%w: %s", operation.ErrRefused, strings.TrimPrefix(results[i].Err, operation.ErrRefused.Error()+": "))
		case results[i].Err != "":
			errs[i] = errors.New(results[i].Err)
		case results[i].Errno != 0:
			errs[i] = fmt.Errorf("replaced, and it does not answer: %w", results[i].Errno)
		}
	}
	return errs
}
