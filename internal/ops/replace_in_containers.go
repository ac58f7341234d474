package ops

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Containers have mounts of their own, in mount namespaces of their own: a mount that is
// replaced on the host stays dead there. ProbeInContainer probes a container's mount,
// ReplaceInContainers replaces containers' mounts. No program of a container is run, no link in
// it is followed, and no path in it is trusted: what a path leads to must be the mount that was
// meant.

// ReplaceInContainersQuery names mounts in the mount namespaces of containers.
type ReplaceInContainersQuery struct {
	Swaps []facts.ContainerSwap
	// Budget is the time for each mount namespace; several are worked on at a time.
	Budget time.Duration
}

// namespacesAtOnce bounds the namespaces that are worked on at a time.
const namespacesAtOnce = 4

// replaceInContainers returns an answer for each swap.
func replaceInContainers(q ReplaceInContainersQuery) ([]facts.ContainerProbe, error) {
	byNamespace := map[uint64][]int{}
	for i, s := range q.Swaps {
		ns := s.Container.Namespace
		byNamespace[ns] = append(byNamespace[ns], i)
	}
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	results := make([]facts.ContainerProbe, len(q.Swaps))
	slots := make(chan struct{}, namespacesAtOnce)
	var wg sync.WaitGroup
	for _, here := range byNamespace {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			// The thread may still act when the budget is over, until the worker has ended, for
			// which the caller waits (worker.ErrLeft).
			var done []facts.ContainerProbe // of the thread alone, until that has ended
			ended, err := onThread(home, q.Budget, func() (err error) {
				done, err = q.namespace(home, here)
				return err
			})
			for n, i := range here {
				switch {
				case !ended:
					results[i] = facts.ContainerProbe{TimedOut: true, Err: fmt.Sprintf("no answer within %s", q.Budget)}
				case err != nil:
					results[i] = failed(err)
				default:
					results[i] = done[n]
				}
			}
		})
	}
	wg.Wait()
	return results, nil
}

// namespace works on the swaps of one namespace, given by their indexes, one after the other.
func (q ReplaceInContainersQuery) namespace(home *os.File, here []int) ([]facts.ContainerProbe, error) {
	in, err := openContainer(q.Swaps[here[0]].Container)
	if err != nil {
		return nil, err
	}
	defer in.close()
	swaps := make([]*swap, len(here))
	for n, i := range here {
		// Here: open_tree(2) clones only what is in the thread's own namespace.
		swaps[n] = prepareSwap(in, q.Swaps[i])
		defer swaps[n].close()
	}
	pause("replace-in-container/cloned")
	if err := in.enter(); err != nil {
		return nil, err
	}
	pause("replace-in-container/entered")
	if err := copyNested(home, in, swaps); err != nil {
		return nil, err
	}
	pause("replace-in-container/copied")
	results := make([]facts.ContainerProbe, len(here))
	for n, s := range swaps {
		if err := in.alive(); err != nil {
			s.err = err
		}
		if s.err == nil {
			s.err = s.run()
		}
		results[n] = facts.ContainerProbe{Errno: s.errno, Swapped: s.swapped}
		if s.err != nil {
			results[n] = failed(s.err)
		}
	}
	return results, nil
}

func failed(err error) facts.ContainerProbe {
	return facts.ContainerProbe{Err: err.Error(), Refused: errors.Is(err, operation.ErrRefused), Ended: errors.Is(err, errEnded)}
}
