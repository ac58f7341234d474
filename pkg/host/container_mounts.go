package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/mount"
)

type (
	// Container is one that runs.
	Container = ops.Container
	// Workload names a container and its pod.
	Workload = ops.Workload
	// ContainerMount is a mount in the mount namespace of a running container.
	ContainerMount = ops.ContainerMount
	// MountQuery says which mounts of containers are wanted.
	MountQuery = mount.Filter
	// Directory names a directory of a filesystem.
	Directory = mount.Directory
)

// Unverified is a container whose mounts cannot be read from here, or none where no one
// container is meant.
type Unverified struct {
	ops.Workload
	// Started is when it did, in time since the boot.
	Started time.Duration
	Why     Why
	// Detail is the name of the sandbox, or the text of the error.
	Detail string
	// Has is true where it is seen to have mounts of the volume.
	Has bool
}

// Why says why the mounts of a container are not known.
type Why uint8

// The reasons for an Unverified.
const (
	// WhyProbeFailed: its mount could not be probed, for the error in Detail.
	WhyProbeFailed Why = iota
	// WhyNoAnswer: its mount does not answer a probe.
	WhyNoAnswer
	// WhyUnreadable: its mount table could not be read, for the error in Detail.
	WhyUnreadable
	// WhyScanCut: not all processes of the node could be read in time.
	WhyScanCut
	// WhySandbox: it runs on a kernel of its own.
	WhySandbox
	// WhyForeign: its mount namespace belongs to another user namespace.
	WhyForeign
	// WhyTooMany: it has more mounts of the volume than are inspected.
	WhyTooMany
	// WhyUnplaced: a process of it lives whose mount namespace could not be told.
	WhyUnplaced
)

// The most mounts that are read in a namespace, and in all containers of a pod: a
// container may bind what it has as often as it likes, and must not use up the work for
// other pods.
const (
	maxInNamespace = 64
	maxInPod       = 256
)

// Containers is what a walk through the mount namespaces of containers found.
type Containers struct {
	Mounts     []ContainerMount
	Unverified []Unverified
}

// InContainers looks for mounts in the mount namespaces of the pods' running
// containers, with nil for pods in all but the host's own. It walks no path and asks no
// filesystem. A mount at one of kubelet's own paths is no container's mount, but a copy
// of the host's.
func (n *Node) InContainers(ctx context.Context, pods []string, q MountQuery) (found Containers, err error) {
	walk, err := n.walkContainers(ctx)
	if err != nil {
		return found, err
	}
	if walk.Cut {
		found.Unverified = append(found.Unverified, Unverified{Why: WhyScanCut})
	}
	var of []ops.Container
	for _, c := range walk.Containers {
		if pods != nil && !slices.Contains(pods, c.PodUID) {
			continue
		}
		if c.Unplaced {
			found.unverified(c, WhyUnplaced, "")
		}
		switch {
		case c.Sandbox != "":
			found.unverified(c, WhySandbox, c.Sandbox)
		case c.Foreign && c.PodUID != "":
			found.unverified(c, WhyForeign, "")
		case !c.Foreign && c.PID != 0:
			of = append(of, c)
		}
	}
	return found, n.addMounts(ctx, of, q, &found)
}

// addMounts adds the mounts of containers that are wanted.
func (n *Node) addMounts(ctx context.Context, of []ops.Container, q MountQuery, found *Containers) error {
	if len(of) == 0 {
		return nil
	}
	mounts, err := n.mountsOf(ctx, of, q)
	if err != nil {
		return err
	}
	inPod := map[string]int{}
	for i, c := range of {
		switch here := n.mountsIn(c, mounts[i], q); {
		case mounts[i].Ended:
		case mounts[i].Many || inPod[c.PodUID]+len(here) > maxInPod:
			found.unverified(c, WhyTooMany, "")
			found.Unverified[len(found.Unverified)-1].Has = true
		case mounts[i].Err != "":
			found.unverified(c, WhyUnreadable, mounts[i].Err)
		default:
			inPod[c.PodUID] += len(here)
			found.Mounts = append(found.Mounts, here...)
		}
	}
	return nil
}

func (f *Containers) unverified(c ops.Container, why Why, detail string) {
	f.Unverified = append(f.Unverified, Unverified{Workload: c.Workload, Started: c.Started, Why: why, Detail: detail})
}

// mountsIn returns the wanted mounts of a container that are topmost at their paths.
func (n *Node) mountsIn(c ops.Container, of ops.MountsOf, q MountQuery) (found []ContainerMount) {
	table := NewTable(of.Mounts)
	for _, m := range of.Mounts {
		if !q.Wants(m) || n.kubelet.Layout(m.Path).Kind != LayoutOther {
			continue
		}
		if stack := table.Stack(m.Path); len(stack) > 0 && stack[0].Same(m) { // no other mount hides it
			found = append(found, ContainerMount{Container: c, Mount: m, Below: stack[1:]})
		}
	}
	return found
}

// mountsOf reads mounts of containers.
func (n *Node) mountsOf(ctx context.Context, of []ops.Container, q MountQuery) ([]ops.MountsOf, error) {
	ask := ops.MountsQuery{Of: of, Wanted: q, Limit: maxInNamespace}
	var found []ops.MountsOf
	err := n.probes.unlessStuck(namespaces, func() (err error) {
		found, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, ops.Mounts, ask)
		return err
	})
	if err == nil && len(found) != len(of) {
		err = errors.New("the worker left out a container")
	}
	return found, err
}
