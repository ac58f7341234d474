package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

// ContainerProbe is the result of a probe of a container's mount, through its own path.
type ContainerProbe = ops.InContainerResult

// ProbeInContainers probes mounts in containers. A filesystem that ended has ended for
// all mounts of its superblock: the answer of one of them counts for the others, unless
// it has none. Only on NFS one directory may be stale, and another not.
func (n *Node) ProbeInContainers(ctx context.Context, mounts []ContainerMount) ([]ContainerProbe, error) {
	type group struct {
		dev Dev
		id  int
	}
	members := map[group][]int{}
	for i, m := range mounts {
		g := group{dev: m.Mount.Dev}
		if IsNFS(m.Mount.FSType) {
			g.id = m.Mount.OldID
		}
		members[g] = append(members[g], i)
	}
	found := make([]ContainerProbe, len(mounts))
	var wg sync.WaitGroup
	for _, at := range members {
		wg.Go(func() {
			for tries, i := range at {
				found[i] = n.probeInContainer(ctx, mounts[i])
				rest := ContainerProbe{Err: errTooManyFailed.Error()}
				if forAll(found[i]) {
					rest = found[i]
				} else if tries < maxProbes {
					continue
				}
				for _, other := range at[tries+1:] {
					found[other] = rest
				}
				break
			}
		})
	}
	wg.Wait()
	return found, ctx.Err()
}

var errTooManyFailed = errors.New("too many of its mounts could not be asked")

// maxProbes bounds the mounts of a superblock that are asked, one after the other.
const maxProbes = 64

// forAll reports whether an answer counts for all mounts of the superblock: it works,
// or its connection is gone. Any other error may concern one directory only.
func forAll(s ContainerProbe) bool {
	if s.Err != "" || s.Ended {
		return false
	}
	return s.TimedOut || slices.Contains([]syscall.Errno{0, syscall.ENOTCONN, syscall.ECONNABORTED}, s.Errno)
}

// probeInContainer probes one mount. There is one worker at each storage at a time, and
// none beside one that cannot be ended: then the answer is that it hangs.
func (n *Node) probeInContainer(ctx context.Context, m ContainerMount) ContainerProbe {
	s := storageOf(m.Mount)
	at, first := n.probes.join(s, Mount{})
	for !first {
		select {
		case <-at.done:
		case <-ctx.Done():
			return ContainerProbe{Err: ctx.Err().Error()}
		}
		if at.found.Answer.TimedOut {
			return ContainerProbe{TimedOut: true}
		}
		at, first = n.probes.join(s, Mount{})
	}
	var found ContainerProbe
	err := n.atServer(ctx, m.Mount, func() (err error) {
		found, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.ProbeInContainer, m)
		return err
	})
	quiet := timedOut(ctx, err)
	n.probes.finish(s, at, Inspection{Answer: Answer{Asked: true, TimedOut: quiet, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}}, err)
	switch {
	case quiet:
		found = ContainerProbe{TimedOut: true}
	case err != nil: // that the container has it is known; whether it works is not
		found = ContainerProbe{Err: err.Error()}
	}
	return found
}
