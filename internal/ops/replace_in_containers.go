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
// InContainer replaces them. No program of a container is run, no link of it is followed,
// and no path of it is trusted: what a path leads to must be the mount that was meant.

// ReplaceInContainersQuery names mounts in the mount namespaces of containers.
type ReplaceInContainersQuery struct {
	Targets []InContainerTarget
	// Budget is for each mount namespace; several are worked on at a time.
	Budget time.Duration
}

// InContainerTarget is one mount in one mount namespace.
type InContainerTarget struct {
	// PID is a process in the namespace, whose inode number is Namespace.
	PID       int
	Namespace uint64
	// Path is as seen from the root of the namespace, Mount what is topmost there.
	Path  string
	Mount mount.Ref
	// Attr are the attributes that it had.
	Attr mount.Attr
	// Swap says what is to come instead.
	Swap Swap
}

// Swap says what a dead mount is replaced by.
type Swap struct {
	// Source is on the host.
	Source Source
	// Attr are the final attributes.
	Attr mount.Attr
	// Before and After are the propagation types (MS_PRIVATE ...) that ours gets
	// before it is moved, and in the end; 0 leaves it as it is. Join makes it a
	// peer of the source in the end.
	Before, After uint64
	Join          bool
	// Ended is true for a filesystem that has ended although it answers, Stale for one
	// of NFS, which has to answer ESTALE.
	Ended, Stale bool
	// Stray is a mount that an interrupted replacement left on top of the dead one;
	// zero for none.
	Stray mount.Ref
	// Ours is a mount that an interrupted replacement left: beneath the dead one,
	// or alone if it is what is topmost. Zero for none.
	Ours mount.Ref
	// Covers is the dead mount, of this superblock, on top of which ours is to be; zero
	// where ours comes in its place.
	Covers     mount.Ref
	Superblock mount.Dev
}

// InContainerResult says what was seen, or done, at one target.
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

// inContainer has an entry for each target.
func inContainer(q ReplaceInContainersQuery) ([]InContainerResult, error) {
	byNamespace := map[uint64][]int{}
	var order []uint64
	for i, t := range q.Targets {
		if byNamespace[t.Namespace] == nil {
			order = append(order, t.Namespace)
		}
		byNamespace[t.Namespace] = append(byNamespace[t.Namespace], i)
	}
	// This thread may have entered the host's mount namespace; the others are where
	// the process began.
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	results := make([]InContainerResult, len(q.Targets))
	slots := make(chan struct{}, namespacesAtOnce)
	var wg sync.WaitGroup
	for _, ns := range order {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			targets := byNamespace[ns]
			for n, r := range q.within(home, targets) {
				results[targets[n]] = r
			}
		})
	}
	wg.Wait()
	return results, nil
}

// within works on the targets of one namespace on a thread of its own, and gives up on
// that when the budget is over.
func (q ReplaceInContainersQuery) within(home *os.File, targets []int) []InContainerResult {
	done := make(chan []InContainerResult, 1)
	go func() {
		// A thread that was in a container must not be used again: it ends here.
		runtime.LockOSThread()
		done <- q.namespace(home, targets)
	}()
	select {
	case results := <-done:
		return results
	case <-time.After(q.Budget):
		return slices.Repeat([]InContainerResult{{TimedOut: true, Err: fmt.Sprintf("no answer within %s", q.Budget)}}, len(targets))
	}
}

// namespace works on the targets of one namespace, one after the other.
func (q ReplaceInContainersQuery) namespace(home *os.File, targets []int) []InContainerResult {
	fail := func(err error) []InContainerResult {
		return slices.Repeat([]InContainerResult{failed(err)}, len(targets))
	}
	if err := mount.Enter(home); err != nil {
		return fail(err)
	}
	in, err := openContainer(q.Targets[targets[0]])
	if err != nil {
		return fail(err)
	}
	defer in.close()
	swaps := make([]*swap, len(targets))
	for n, i := range targets {
		// A clone can only be made from within the namespace of its source.
		swaps[n] = prepareSwap(in, q.Targets[i])
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
	results := make([]InContainerResult, len(targets))
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
		results[n] = in.probe(s.query)
		results[n].Swapped = s.swapped
	}
	return results
}

func failed(err error) InContainerResult {
	return InContainerResult{Err: err.Error(), Refused: errors.Is(err, worker.ErrRefused), Ended: errors.Is(err, errEnded)}
}
