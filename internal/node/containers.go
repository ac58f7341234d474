package node

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// The most mounts that are returned of one namespace, and of all containers of one pod: a container
// may bind what it has mounted as often as it likes, and must not use up the time for other pods.
const (
	maxInNamespace = 64
	maxInPod       = 256
)

// Containers is what a walk through the mount namespaces of containers found.
type Containers struct {
	Mounts     []facts.ContainerMount
	Unverified []facts.Unverified
}

// maxWalks is how often processes are walked anew because one ended before the mounts of its namespace
// were read: its container may still run, as runc's first process ends while the container starts.
const maxWalks = 3

// InContainers looks for mounts in the mount namespaces of the pods' running containers, with nil for
// pods in all namespaces but the host's. It walks no path and asks no filesystem. A mount at one of
// kubelet's own paths is left out: it is a copy of the host's mount, as in a CSI driver's container.
// With before, a container may be left out that started after the present mounts of the host came.
func (n *Node) InContainers(ctx context.Context, pods []string, q facts.Filter, before bool) (found Containers, err error) {
	for range maxWalks {
		walk, earlier, err := n.containers(ctx, before)
		before = false // what has ended since then may have left another process
		if err != nil {
			return found, err
		}
		found = Containers{}
		ended, err := n.addMounts(ctx, found.inspectable(walk, pods), q, &found)
		// A container in a container copies what that one has mounted, whatever the host has by then.
		if err != nil || !ended && (!earlier || len(found.Mounts) == 0) {
			return found, err
		}
	}
	found.Unverified = append(found.Unverified, facts.Unverified{Why: facts.WhyScanCut})
	return found, nil
}

// inspectable returns the containers of the pods whose mounts may be read, and notes the others.
func (f *Containers) inspectable(walk ops.ProcessesAnswer, pods []string) (of []facts.Container) {
	if walk.Cut {
		f.Unverified = append(f.Unverified, facts.Unverified{Why: facts.WhyScanCut})
	}
	for _, c := range walk.Containers {
		if pods != nil && !slices.Contains(pods, c.PodUID) {
			continue
		}
		if c.Unplaced {
			f.unverified(c, facts.WhyUnplaced, "")
		}
		switch {
		case c.Sandbox != "":
			f.unverified(c, facts.WhySandbox, c.Sandbox)
		case c.Foreign && c.PodUID != "" && !c.Pause: // that one is as old as its pod, and has no volume
			f.unverified(c, facts.WhyForeign, "")
		case !c.Foreign && c.PID != 0:
			of = append(of, c)
		}
	}
	return of
}

// addMounts adds the mounts of containers that are wanted. ended is true if the process of one has ended.
func (n *Node) addMounts(ctx context.Context, of []facts.Container, q facts.Filter, found *Containers) (ended bool, err error) {
	if len(of) == 0 {
		return false, nil
	}
	mounts, err := n.mountsOf(ctx, of, q)
	if err != nil {
		return false, err
	}
	inPod := map[string]int{}
	for i, c := range of {
		switch here := n.mountsIn(c, mounts[i], q); {
		case mounts[i].Ended:
			ended = true
		case mounts[i].Many || inPod[c.PodUID]+len(here) > maxInPod:
			found.unverified(c, facts.WhyTooMany, "")
			found.Unverified[len(found.Unverified)-1].Has = true
		case mounts[i].Err != "":
			found.unverified(c, facts.WhyUnreadable, mounts[i].Err)
		default:
			inPod[c.PodUID] += len(here)
			found.Mounts = append(found.Mounts, here...)
		}
	}
	return ended, nil
}

func (f *Containers) unverified(c facts.Container, why facts.Why, detail string) {
	f.Unverified = append(f.Unverified, facts.Unverified{Workload: c.Workload, Started: c.Started, Why: why, Detail: detail})
}

// mountsIn returns the wanted mounts of a container that are topmost at their paths.
func (n *Node) mountsIn(c facts.Container, of ops.MountsOf, q facts.Filter) (found []facts.ContainerMount) {
	table := NewTable(of.Mounts)
	for _, m := range of.Mounts {
		if !q.Wants(m) || n.kubelet.Layout(m.Path).Kind != layout.Other {
			continue
		}
		if stack := table.Stack(m.Path); len(stack) > 0 && stack[0].Same(m) { // no other mount hides it
			found = append(found, facts.ContainerMount{Container: c, Mount: m, Below: stack[1:]})
		}
	}
	return found
}

func (n *Node) mountsOf(ctx context.Context, of []facts.Container, q facts.Filter) ([]ops.MountsOf, error) {
	ask := ops.MountsQuery{Of: of, Wanted: q, Limit: maxInNamespace}
	var found []ops.MountsOf
	err := n.probes.unlessStuck(namespaces, func() (err error) {
		found, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Mounts, ask)
		return err
	})
	if err == nil && len(found) != len(of) {
		err = errAnswers
	}
	return found, err
}

// InPods returns what runs in pods, and what only keeps a pod's namespaces. If not all processes could be read,
// a container without a name is among them.
func (n *Node) InPods(ctx context.Context) ([]facts.Container, error) {
	walk, err := n.processes(ctx, containerWalk)
	found := slices.DeleteFunc(slices.Clone(walk.Containers), func(c facts.Container) bool { return c.PodUID == "" })
	if walk.Cut {
		found = append(found, facts.Container{})
	}
	return found, err
}

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
