package node

import (
	"context"
	"errors"
	"sync"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// ProbeInContainers probes mounts in containers. What ends is a superblock, with all of its mounts: an
// answer of one mount for which countsForAll is true counts for the others. Only on NFS one mount may
// be stale and another of the same superblock not, so each is asked.
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
				if countsForAll(found[i]) {
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

// maxProbes bounds the mounts of one superblock that are asked, one after the other, when an answer
// says nothing of the others.
const maxProbes = 64

// countsForAll reports whether the answer of one mount counts for all mounts of its superblock: it works,
// does not answer, or its FUSE connection is gone. Any other errno may concern one directory only.
func countsForAll(s facts.ContainerProbe) bool {
	if s.Err != "" || s.Ended {
		return false
	}
	return s.TimedOut || s.Errno == 0 || facts.Disconnected(s.Errno)
}

// probeInContainer probes one mount. One worker at a time asks a storage, and none while a worker waits
// there that cannot be ended: then the answer is that the storage hangs.
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
	answer := facts.Answer{Asked: true}
	switch {
	case timedOut(ctx, err):
		answer, found = n.noAnswer(err), facts.ContainerProbe{TimedOut: true}
	case err != nil: // the container has the mount; whether that works is not known
		found = facts.ContainerProbe{Err: err.Error()}
	}
	n.probes.finish(s, at, Inspection{Answer: answer}, err)
	return found
}
