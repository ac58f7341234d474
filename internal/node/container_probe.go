package node

import (
	"context"
	"errors"
	"sync"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ProbeInContainers probes mounts in containers. A filesystem that ended has ended for
// all mounts of its superblock: the answer of one of them counts for the others, unless
// it has none. Only on NFS one directory may be stale, and another not.
func (n *Node) ProbeInContainers(ctx context.Context, mounts []facts.ContainerMount) ([]facts.ContainerProbe, error) {
	type group struct {
		dev facts.Dev
		id  int
	}
	members := map[group][]int{}
	for i, m := range mounts {
		g := group{dev: m.Mount.Dev}
		if facts.IsNFS(m.Mount.FSType) {
			g.id = m.Mount.OldID
		}
		members[g] = append(members[g], i)
	}
	found := make([]facts.ContainerProbe, len(mounts))
	var wg sync.WaitGroup
	for _, at := range members {
		wg.Go(func() {
			for tries, i := range at {
				found[i] = n.probeInContainer(ctx, mounts[i])
				rest := facts.ContainerProbe{Err: errTooManyFailed.Error()}
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
func forAll(s facts.ContainerProbe) bool {
	if s.Err != "" || s.Ended {
		return false
	}
	return s.TimedOut || s.Errno == 0 || facts.Disconnected(s.Errno)
}

// probeInContainer probes one mount. There is one worker at each storage at a time, and
// none beside one that cannot be ended: then the answer is that it hangs.
func (n *Node) probeInContainer(ctx context.Context, m facts.ContainerMount) facts.ContainerProbe {
	s := storageOf(m.Mount)
	at, first := n.probes.join(s, facts.Mount{})
	for !first {
		select {
		case <-at.done:
		case <-ctx.Done():
			return facts.ContainerProbe{Err: ctx.Err().Error()}
		}
		if at.found.Answer.TimedOut {
			return facts.ContainerProbe{TimedOut: true}
		}
		at, first = n.probes.join(s, facts.Mount{})
	}
	var found facts.ContainerProbe
	err := n.atServer(ctx, m.Mount, func() (err error) {
		found, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.ProbeInContainer, m)
		return err
	})
	quiet := timedOut(ctx, err)
	n.probes.finish(s, at, Inspection{Answer: facts.Answer{Asked: true, TimedOut: quiet, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}}, err)
	switch {
	case quiet:
		found = facts.ContainerProbe{TimedOut: true}
	case err != nil: // that the container has it is known; whether it works is not
		found = facts.ContainerProbe{Err: err.Error()}
	}
	return found
}
