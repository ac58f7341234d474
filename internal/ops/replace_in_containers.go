package ops

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// Containers have mounts of their own, in mount namespaces of their own: what is
// healed on the host stays dead there. ProbeInContainer probes such a mount,
// ReplaceInContainers replaces them. No program of a container is run, no link of it is followed,
// and no path of it is trusted: what a path leads to must be the mount that was meant.

// ReplaceInContainersQuery names mounts in the mount namespaces of containers.
type ReplaceInContainersQuery struct {
	Swaps []Swap
	// Budget is for each mount namespace; several are worked on at a time.
	Budget time.Duration
}

// Swap says what comes instead of a mount in a container.
type Swap struct {
	Container ContainerMount
	// Source is the healthy mount on the host, Sub the directory or file below its
	// root that the container has.
	Source mount.Mount
	Sub    string
	// Attr are the final attributes.
	Attr mount.Attr
	// Sharing is how it is to share mount events in the end.
	Sharing mount.Sharing
	// Ended is true for a filesystem that has ended although it answers, Stale for one
	// of NFS, which has to answer ESTALE.
	Ended, Stale bool
	// Stray is a mount that an interrupted replacement left on top of the dead one;
	// zero for none.
	Stray mount.Ref
	// Ours is a mount that an interrupted replacement left: beneath the dead one,
	// or alone if it is what is topmost. Zero for none.
	Ours mount.Ref
	// Covers is the dead mount on top of which ours is to be; zero where ours comes in
	// its place.
	Covers mount.Mount
}

// InContainerResult says what was seen, or done, at one mount.
type InContainerResult struct {
	// Errno is the result of a probe of the mount, through the container's own path,
	// in the end.
	Errno syscall.Errno
	// Err says why a probe, or the replacement, was not done; Refused is true if
	// it must not be, TimedOut if there was no answer in time, Ended if the process
	// is gone.
	Err                      string
	Refused, TimedOut, Ended bool
	// Swapped is how long it took to move ours beneath and to detach the dead mount.
	Swapped time.Duration
}

// namespacesAtOnce bounds the namespaces that are worked on at a time.
const namespacesAtOnce = 4

// replaceInContainers has an entry for each swap.
func replaceInContainers(q ReplaceInContainersQuery) ([]InContainerResult, error) {
	byNamespace := map[uint64][]int{}
	var order []uint64
	for i, s := range q.Swaps {
		ns := s.Container.Namespace
		if byNamespace[ns] == nil {
			order = append(order, ns)
		}
		byNamespace[ns] = append(byNamespace[ns], i)
	}
	// This thread may have entered the host's mount namespace; the others are where
	// the process began.
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	results := make([]InContainerResult, len(q.Swaps))
	slots := make(chan struct{}, namespacesAtOnce)
	var wg sync.WaitGroup
	for _, ns := range order {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			here := byNamespace[ns]
			for n, r := range q.within(home, here) {
				results[here[n]] = r
			}
		})
	}
	wg.Wait()
	return results, nil
}

// within works on the swaps of one namespace on a thread of its own, and gives up on
// that when the budget is over.
func (q ReplaceInContainersQuery) within(home *os.File, here []int) []InContainerResult {
	done := make(chan []InContainerResult, 1)
	go func() {
		// A thread that was in a container must not be used again: it ends here.
		runtime.LockOSThread()
		done <- q.namespace(home, here)
	}()
	select {
	case results := <-done:
		return results
	case <-time.After(q.Budget):
		return slices.Repeat([]InContainerResult{{TimedOut: true, Err: fmt.Sprintf("no answer within %s", q.Budget)}}, len(here))
	}
}

// namespace works on the swaps of one namespace, one after the other.
func (q ReplaceInContainersQuery) namespace(home *os.File, here []int) []InContainerResult {
	fail := func(err error) []InContainerResult {
		return slices.Repeat([]InContainerResult{failed(err)}, len(here))
	}
	if err := mount.Enter(home); err != nil {
		return fail(err)
	}
	in, err := openContainer(q.Swaps[here[0]].Container)
	if err != nil {
		return fail(err)
	}
	defer in.close()
	swaps := make([]*swap, len(here))
	for n, i := range here {
		// A clone can only be made from within the namespace of its source.
		swaps[n] = prepareSwap(in, q.Swaps[i])
		defer swaps[n].close()
	}
	pause("replace-in-container/cloned")
	if err := in.enter(); err != nil {
		return fail(err)
	}
	pause("replace-in-container/entered")
	if err := copyNested(home, in, swaps); err != nil {
		return fail(err)
	}
	pause("replace-in-container/copied")
	results := make([]InContainerResult, len(here))
	for n, s := range swaps {
		if err := in.alive(); n > 0 && err != nil {
			s.err = err
		}
		if s.err == nil {
			s.err = s.run()
		}
		if s.err != nil {
			results[n] = failed(s.err)
			continue
		}
		results[n] = in.probe(s.query.Container)
		results[n].Swapped = s.swapped
	}
	return results
}

func failed(err error) InContainerResult {
	return InContainerResult{Err: err.Error(), Refused: errors.Is(err, worker.ErrRefused), Ended: errors.Is(err, errEnded)}
}
