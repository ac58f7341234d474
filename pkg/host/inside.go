package host

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// ContainerMount is a mount in the mount namespace of a running container.
type ContainerMount struct {
	// PID is the container's first process, Namespace the inode number of its mount
	// namespace.
	PID       int
	Namespace uint64
	// PodUID and ContainerID are empty outside of pods.
	PodUID, ContainerID string
	// cgroup is the runtime's directory for the container.
	cgroup string
	// Mount is topmost at its path, which is as seen from the root of the
	// namespace. Below is what it hides there, the upper first.
	Mount Mount
	Below []Mount
}

// Path leads to it from outside the container.
func (c ContainerMount) Path() string {
	return path.Join("/proc", strconv.Itoa(c.PID), "root", c.Mount.Path)
}

// String names the container and the path in it, for messages.
func (c ContainerMount) String() string {
	who := WorkloadName(c.PodUID, c.ContainerID)
	if who == "" {
		who = "process " + strconv.Itoa(c.PID)
	}
	return who + " at " + strconv.Quote(c.Mount.Path)
}

func (c ContainerMount) container() workerops.Container {
	return workerops.Container{
		Workload: workerops.Workload{PodUID: c.PodUID, ContainerID: c.ContainerID, Dir: c.cgroup}, PID: c.PID, Namespace: c.Namespace,
	}
}

// Running is a container that runs.
type Running struct {
	// PodUID and ContainerID are empty where no one container is meant.
	PodUID, ContainerID string
	// Started is when it did, in time since the boot.
	Started time.Duration
}

// String names the container, for messages.
func (r Running) String() string {
	return Unverified{PodUID: r.PodUID, ContainerID: r.ContainerID}.String()
}

// Unverified is a container of which nobody here can see what it has mounted.
type Unverified struct {
	// PodUID and ContainerID are empty where no one container is meant.
	PodUID, ContainerID string
	// Started is when it did, in time since the boot.
	Started time.Duration
	// Why is half a sentence.
	Why string
	// Has is true where it is seen to have mounts of the volume.
	Has bool
}

// String names the container, for messages.
func (u Unverified) String() string {
	if who := WorkloadName(u.PodUID, u.ContainerID); who != "" {
		return who
	}
	return "a container"
}

// The most mounts that are looked at in a namespace, and in all containers of a
// pod: a container may bind what it has as often as it likes, and must not use up
// what is looked at for other pods.
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
// containers, with nil for pods in all but the host's own. No path is walked and
// no filesystem asked. What stands at one of kubelet's own paths is no container's
// mount, but a copy of the host's.
func (n *Node) InContainers(ctx context.Context, pods []string, q MountQuery) (found Containers, err error) {
	walk, err := n.containers.all(ctx, n)
	if err != nil {
		return found, err
	}
	if walk.Cut {
		found.Unverified = append(found.Unverified, Unverified{Why: "not all processes on the node could be looked at in time"})
	}
	var of []workerops.Container
	for _, c := range walk.Containers {
		switch {
		case pods != nil && !slices.Contains(pods, c.PodUID):
		case c.Sandbox != "":
			found.unverified(c, "it runs in a sandbox ("+c.Sandbox+")")
		case c.Foreign && c.PodUID != "":
			found.unverified(c, "its mount namespace belongs to another user namespace")
		case !c.Foreign:
			of = append(of, c)
		}
	}
	return found, n.addMounts(ctx, of, q, &found)
}

// addMounts adds the mounts of containers that are wanted.
func (n *Node) addMounts(ctx context.Context, of []workerops.Container, q MountQuery, found *Containers) error {
	if len(of) == 0 {
		return nil
	}
	mounts, err := n.mountsOf(ctx, of, q)
	if err != nil {
		return err
	}
	inPod := map[string]int{}
	for i, c := range of {
		switch here, err := n.mountsIn(c, mounts[i], q); {
		case mounts[i].Ended:
		case mounts[i].Many || inPod[c.PodUID]+len(here) > maxInPod:
			found.unverified(c, "it has more mounts of the volume than are looked at")
			found.Unverified[len(found.Unverified)-1].Has = true
		case mounts[i].Err != "":
			found.unverified(c, "its mounts could not be read: "+mounts[i].Err)
		case err != nil:
			found.unverified(c, "its mounts could not be read: "+err.Error())
		default:
			inPod[c.PodUID] += len(here)
			found.Mounts = append(found.Mounts, here...)
		}
	}
	return nil
}

func (f *Containers) unverified(c workerops.Container, why string) {
	f.Unverified = append(f.Unverified, Unverified{PodUID: c.PodUID, ContainerID: c.ContainerID, Started: c.Started, Why: why})
}

// mountsIn gives the wanted mounts of a container that are topmost at their paths.
func (n *Node) mountsIn(c workerops.Container, of workerops.MountsOf, q MountQuery) (found []ContainerMount, err error) {
	mounts := make([]Mount, 0, len(of.Entries))
	for _, e := range of.Entries {
		m, err := mountOf(e.Entry)
		if err != nil {
			return nil, err
		}
		m.ID = e.Unique
		mounts = append(mounts, m)
	}
	table := NewTable(mounts)
	for _, m := range mounts {
		if !q.Wants(m) || n.kubelet.Layout(m.Path).Kind != LayoutOther {
			continue
		}
		if stack := table.Stack(m.Path); len(stack) > 0 && stack[0].Same(m) { // nothing that stands on it hides it
			found = append(found, ContainerMount{
				PID: c.PID, Namespace: c.Namespace, PodUID: c.PodUID, ContainerID: c.ContainerID, cgroup: c.Dir, Mount: m, Below: stack[1:],
			})
		}
	}
	return found, nil
}

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

// ContainerProbe is what a touch of a container's mount, through its own path, gave.
type ContainerProbe struct {
	Errno  syscall.Errno
	Silent bool
	// Unable says why it was not touched, Ended that the container is gone.
	Unable string
	Ended  bool
}

// ProbeInContainers touches mounts in containers. What ended has ended for all mounts of
// its superblock: what one of them says counts for the others, unless it could not
// say anything. Only on NFS one directory may be stale, and another not.
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
	sights := make([]ContainerProbe, len(mounts))
	var wg sync.WaitGroup
	for _, at := range members {
		wg.Go(func() {
			for tries, i := range at {
				sights[i] = n.lookInside(ctx, mounts[i])
				rest := ContainerProbe{Unable: "too many of its mounts could not be asked"}
				if sights[i].forAll() {
					rest = sights[i]
				} else if tries < maxPeeks {
					continue
				}
				for _, other := range at[tries+1:] {
					sights[other] = rest
				}
				break
			}
		})
	}
	wg.Wait()
	return sights, ctx.Err()
}

// maxPeeks is how many mounts of a superblock are asked, one after the other.
const maxPeeks = 64

// forAll is true for what one mount says for all of its superblock: it answers, or
// its connection is gone. What else went wrong may be one directory's trouble.
func (s ContainerProbe) forAll() bool {
	if s.Unable != "" || s.Ended {
		return false
	}
	return s.Silent || slices.Contains([]syscall.Errno{0, syscall.ENOTCONN, syscall.ECONNABORTED}, s.Errno)
}

// lookInside touches one mount. There is one worker at each storage at a time, and
// none beside one that cannot be ended: its silence is the answer.
func (n *Node) lookInside(ctx context.Context, m ContainerMount) ContainerProbe {
	s := storageOf(m.Mount)
	at, first := n.probes.join(s, Mount{})
	for !first {
		select {
		case <-at.done:
		case <-ctx.Done():
			return ContainerProbe{Unable: ctx.Err().Error()}
		}
		if at.found.Answer.Silent {
			return ContainerProbe{Silent: true}
		}
		at, first = n.probes.join(s, Mount{})
	}
	var a workerops.ProbeInContainerAnswer
	err := n.atServer(ctx, m.Mount, func() (err error) {
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.ProbeInContainer, m.target())
		return err
	})
	quiet := timedOut(ctx, err)
	n.probes.finish(s, at, Inspection{Answer: Answer{Asked: true, Silent: quiet, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}}, err)
	switch {
	case quiet:
		return ContainerProbe{Silent: true}
	case err != nil: // that the container has it is known; what it does is not
		return ContainerProbe{Unable: err.Error()}
	}
	return ContainerProbe{Errno: a.Errno, Unable: a.Err, Ended: a.Ended}
}

// ReplaceInContainers replaces mounts in containers, each or not at all. It gives an
// error, or nil, for each: nil means that the container's own path answered.
func (n *Node) ReplaceInContainers(ctx context.Context, plans []ContainerSwap) []error {
	errs := make([]error, len(plans))
	q := workerops.InContainersQuery{Budget: n.cfg.StepTimeout / 2}
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
		case err != nil && (!left || results[i].Silent):
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

// inside asks one worker, with a thread for each namespace.
func (n *Node) inContainer(ctx context.Context, q workerops.InContainersQuery) ([]workerops.InContainerResult, error) {
	const perNamespace = 50 * time.Millisecond // most take a hundredth of it
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout+time.Duration(len(q.Targets))*perNamespace)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, workerops.InContainer, q)
	if err == nil && len(a.Results) != len(q.Targets) {
		err = errors.New("the worker left out a container")
	}
	return a.Results, err
}

func (c ContainerMount) target() workerops.InContainerTarget {
	return workerops.InContainerTarget{PID: c.PID, Namespace: c.Namespace, Path: c.Mount.Path, Mount: ref(c.Mount), Attr: uint64(c.Mount.Attr)}
}

// insideGuard stays on a mount until it stands alone in its container and has all
// that it is to have. Hardly anybody mounts like this, so it tells, with a note of
// what was replaced, of an interrupted replacement.
const insideGuard = AttrReadOnly | AttrNoSymFollow

// Guarded is true for a mount in a container that an interrupted replacement left.
func (m Mount) Guarded() bool { return m.Attr.Has(insideGuard) }

// Sharing says how a container's mount shares mount events, and with whom
// (mount_namespaces(7)).
type Sharing string

// The ways to share. A runtime makes a slave (HostToContainer) or a peer
// (Bidirectional) of the mount that the host has at the pod's mount point.
const (
	SharingNone       Sharing = "none"
	SharingSlave      Sharing = "slave of the host's mount"
	SharingPeer       Sharing = "peer of the host's mount"
	SharingOwn        Sharing = "peer group of its own"
	SharingSlaveOwn   Sharing = "slave of the host's mount, peer group of its own"
	SharingUnbindable Sharing = "unbindable"
	// SharingUnknown stays private.
	SharingUnknown Sharing = "unknown"
)

// SharingOf tells how a container's mount shares events while the host still has
// mounts of the same superblock. The numbers of peer groups are given out again, so
// they are compared only among mounts that are there at the same time.
func SharingOf(m Mount, onHost []Mount) Sharing {
	p := m.Propagation
	host := func(group uint64) bool {
		return group != 0 && slices.ContainsFunc(onHost, func(h Mount) bool { return h.Propagation.Shared == group })
	}
	switch {
	case p.Unbindable:
		return SharingUnbindable
	case p == Propagation{}:
		return SharingNone
	case host(p.Master) && p.Shared == 0:
		return SharingSlave
	case host(p.Master):
		return SharingSlaveOwn
	case host(p.Shared):
		return SharingPeer
	case p.Master == 0 && len(onHost) > 0:
		return SharingOwn
	default:
		return SharingUnknown
	}
}

// FollowsHost is true where mounts made on the host appear in the container.
func (s Sharing) FollowsHost() bool {
	return s == SharingSlave || s == SharingSlaveOwn || s == SharingPeer
}

func (p ContainerSwap) swap() workerops.Swap {
	s := workerops.Swap{
		Source: p.Source.Path, SourceMount: ref(p.Source), Sub: p.Sub,
		Attr: uint64(p.Attr), Guard: uint64(insideGuard), Before: unix.MS_PRIVATE,
		Ended: p.Ended, Stale: p.Stale,
	}
	if p.Ours.OldID != 0 {
		s.Ours = ref(p.Ours)
	}
	if p.Covers.OldID != 0 {
		s.Covers = ref(p.Covers)
		s.Superblock = workerops.Number(p.Covers.Dev)
	}
	if p.Stray.OldID != 0 {
		s.Stray = ref(p.Stray)
	}
	switch p.Sharing {
	case SharingSlave:
		s.Before = unix.MS_SLAVE
	case SharingSlaveOwn:
		s.Before, s.After = unix.MS_SLAVE, unix.MS_SHARED
	case SharingPeer:
		s.Join = true
	case SharingOwn:
		s.After = unix.MS_SHARED
	case SharingUnbindable:
		s.After = unix.MS_UNBINDABLE
	case SharingNone, SharingUnknown:
	}
	return s
}
