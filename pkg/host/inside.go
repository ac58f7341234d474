package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// ContainerMount is a mount in the mount namespace of a running container.
type ContainerMount struct {
	// PID is a process in the namespace, whose inode number is Namespace; the oldest
	// as far as numbers tell. Others are some more, should it end.
	PID       int
	Others    []int
	Namespace uint64
	// PodUID and ContainerID are the process's; empty outside of pods.
	PodUID, ContainerID string
	// Mount is topmost at its path, which is as seen from the root of the
	// namespace. Below is what it hides there, the upper first.
	Mount Mount
	Below []Mount
	// IDMap is true if the kernel shows that it maps ids as the user namespace of
	// the process does; only for a mount that maps any.
	IDMap bool
}

// Path leads to it from outside the container.
func (c ContainerMount) Path() string {
	return path.Join("/proc", strconv.Itoa(c.PID), "root", c.Mount.Path)
}

// String names the container and the path in it, for messages.
func (c ContainerMount) String() string {
	who := workload(c.PodUID, c.ContainerID)
	if who == "" {
		who = "process " + strconv.Itoa(c.PID)
	}
	return who + " at " + strconv.Quote(c.Mount.Path)
}

// Sandbox is a pod whose containers run on a kernel of their own: what is mounted
// for them on this one says nothing of what they see.
type Sandbox struct {
	PodUID string
	// Program is what runs it.
	Program string
}

// The most mounts that are looked at: a container may bind what it has as often as
// it likes.
const (
	maxInNamespace = 64
	maxInAll       = 1024
)

// Containers is what a walk through the mount namespaces of containers found.
type Containers struct {
	Mounts    []ContainerMount
	Sandboxes []Sandbox
	// Unseen counts namespaces that could not be looked at, Crowded those with more
	// mounts than are looked at: none of theirs is told.
	Unseen, Crowded int
}

// InContainers looks for mounts in the mount namespaces of the pods' running
// containers, with nil for pods in all but the host's own. No path is walked and
// no filesystem asked. What stands at one of kubelet's own paths is no container's
// mount, but a copy of the host's.
func (n *Node) InContainers(pods []string, match func(Mount) bool) (Containers, error) {
	var found Containers
	walk, err := n.rooms.all(n.cfg.Procfs, n.hostNamespace)
	if err != nil {
		return found, err
	}
	for _, s := range walk.sandboxes {
		if pods == nil || slices.Contains(pods, s.PodUID) {
			found.Sandboxes = append(found.Sandboxes, s)
		}
	}
	for _, r := range walk.rooms {
		if pods != nil && !slices.Contains(pods, r.podUID) {
			continue
		}
		mounts, err := n.mountsIn(r, match)
		switch {
		case errors.Is(err, errNobody):
			continue
		case err != nil:
			found.Unseen++
		case len(mounts) > maxInNamespace || len(found.Mounts)+len(mounts) > maxInAll:
			found.Crowded++
		default:
			found.Mounts = append(found.Mounts, mounts...)
		}
	}
	return found, nil
}

// errNobody says that no process is left in a namespace.
var errNobody = errors.New("all its processes have ended")

// mountsIn gives the mounts that match in a container's namespace.
func (n *Node) mountsIn(r room, match func(Mount) bool) ([]ContainerMount, error) {
	for i, pid := range r.pids {
		mounts, err := n.mountsOf(pid, match)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && !n.cfg.Procfs.isIn(pid, r.namespace) {
			continue // it has ended
		}
		for k := range mounts {
			mounts[k].PodUID, mounts[k].ContainerID, mounts[k].Others = r.podUID, r.container, r.pids[i+1:]
		}
		return mounts, err
	}
	return nil, errNobody
}

// mountsOf gives the mounts that match in the namespace of a process.
func (n *Node) mountsOf(pid int, match func(Mount) bool) ([]ContainerMount, error) {
	file, err := os.Open(n.cfg.Procfs.path(pid, "ns/mnt"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at a mount namespace: %w", err)
	}
	ns := Namespace{id: namespaceID(int(file.Fd()))}
	table, err := n.tableOf(pid, &ns)
	if err != nil {
		return nil, err
	}
	var found []ContainerMount
	for _, m := range table.Mounts() {
		if !match(m) || n.kubelet.Layout(m.Path).Kind != LayoutOther {
			continue
		}
		stack := table.Stack(m.Path)
		if len(stack) == 0 || !stack[0].Same(m) {
			continue // hidden by what stands on it
		}
		c := ContainerMount{PID: pid, Namespace: st.Ino, Mount: m, Below: stack[1:]}
		c.IDMap = m.Attr.Has(AttrIDMap) && n.cfg.Procfs.idMapped(pid, ns.idMap(m.ID))
		found = append(found, c)
	}
	return found, nil
}

func (n *Node) tableOf(pid int, ns *Namespace) (Table, error) {
	if n.cfg.Namespace.statmount && ns.id != 0 {
		if t, err := ns.readStatmount(); err == nil {
			return t, nil
		}
	}
	f, err := os.Open(n.cfg.Procfs.path(pid, "mountinfo"))
	if err != nil {
		return Table{}, err
	}
	defer f.Close()
	mounts, err := ParseMountinfo(f)
	if err != nil {
		return Table{}, err
	}
	return NewTable(mounts), nil
}

// InsidePlan says what comes in the place of a mount in a container.
type InsidePlan struct {
	Container ContainerMount
	// Source is the healthy mount on the host, Sub the directory or file below its
	// root that the container has.
	Source Mount
	Sub    string
	// Attr are the attributes that it is to have.
	Attr Attr
	// Peer is true if the container's mount shared its events with the host's.
	Peer bool
	// Ours is what an interrupted replacement left, the mount itself or beneath it,
	// Stray what it left on top of the dead mount; zero for none.
	Ours, Stray Mount
}

// InsideSight is what a touch of a container's mount, through its own path, gave.
type InsideSight struct {
	// PID is a process through which it was touched; 0 if that was done for another
	// mount of the superblock.
	PID    int
	Errno  syscall.Errno
	Silent bool
	// Unable says why it was not touched, Ended that the container is gone.
	Unable string
	Ended  bool
}

// LookInside touches mounts in containers. What ended has ended for all mounts of
// its superblock: what one of them says counts for the others, unless it could not
// say anything. Only on NFS one directory may be stale, and another not.
func (n *Node) LookInside(ctx context.Context, mounts []ContainerMount) ([]InsideSight, error) {
	type group struct {
		dev Dev
		id  int
	}
	members := map[group][]int{}
	for i, m := range mounts {
		g := group{dev: m.Mount.Dev}
		if strings.HasPrefix(m.Mount.FSType, "nfs") {
			g.id = m.Mount.OldID
		}
		members[g] = append(members[g], i)
	}
	sights := make([]InsideSight, len(mounts))
	var wg sync.WaitGroup
	for _, at := range members {
		wg.Go(func() {
			for tries, i := range at {
				sights[i] = n.lookInside(ctx, mounts[i])
				rest := InsideSight{Unable: "too many of its mounts could not be asked"}
				if sights[i].forAll() {
					rest = sights[i]
					rest.PID = 0
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
func (s InsideSight) forAll() bool {
	if s.Unable != "" || s.Ended {
		return false
	}
	return s.Silent || slices.Contains([]syscall.Errno{0, syscall.ENOTCONN, syscall.ECONNABORTED}, s.Errno)
}

// lookInside touches one mount. There is one worker at each storage at a time, and
// none beside one that cannot be ended: its silence is the answer.
func (n *Node) lookInside(ctx context.Context, m ContainerMount) InsideSight {
	s := storageOf(m.Mount)
	at, first := n.probes.join(s, Mount{})
	for !first {
		select {
		case <-at.done:
		case <-ctx.Done():
			return InsideSight{Unable: ctx.Err().Error()}
		}
		if at.found.Answer.Silent {
			return InsideSight{Silent: true}
		}
		at, first = n.probes.join(s, Mount{})
	}
	var a touch.PeekAnswer
	var err error
	for _, m.PID = range append([]int{m.PID}, m.Others...) {
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, touch.Peek, m.target())
		if err != nil || !a.Ended {
			break
		}
	}
	quiet := silent(ctx, err)
	n.probes.finish(s, at, Sight{Answer: Answer{Asked: true, Silent: quiet, Stuck: errors.Is(err, worker.ErrStuck), Elapsed: n.cfg.ProbeTimeout}}, err)
	switch {
	case quiet:
		return InsideSight{PID: m.PID, Silent: true}
	case err != nil: // that the container has it is known; what it does is not
		return InsideSight{PID: m.PID, Unable: err.Error()}
	}
	return InsideSight{PID: m.PID, Errno: a.Errno, Unable: a.Err, Ended: a.Ended}
}

// ReplaceInside replaces mounts in containers, each or not at all. It gives an
// error, or nil, for each: nil means that the container's own path answered.
func (n *Node) ReplaceInside(ctx context.Context, plans []InsidePlan) []error {
	errs := make([]error, len(plans))
	q := touch.InsideQuery{Budget: n.cfg.StepTimeout / 2}
	for _, p := range plans {
		t := p.Container.target()
		t.Swap = p.swap()
		q.Targets = append(q.Targets, t)
	}
	results, err := n.inside(ctx, q)
	for i := range plans {
		switch {
		case err != nil:
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
func (n *Node) inside(ctx context.Context, q touch.InsideQuery) ([]touch.InsideResult, error) {
	const perNamespace = 50 * time.Millisecond // most take a hundredth of it
	call, cancel := context.WithTimeout(ctx, n.cfg.StepTimeout+time.Duration(len(q.Targets))*perNamespace)
	defer cancel()
	a, err := worker.Call(call, n.cfg.Pool, touch.Inside, q)
	if err == nil && len(a.Results) != len(q.Targets) {
		err = errors.New("the worker left out a container")
	}
	return a.Results, err
}

func (c ContainerMount) target() touch.InsideTarget {
	return touch.InsideTarget{PID: c.PID, Namespace: c.Namespace, Path: c.Mount.Path, Mount: ref(c.Mount), Attr: uint64(c.Mount.Attr)}
}

// insideGuard stays on a mount until it stands alone in its container and has all
// that it is to have. Hardly anybody mounts like this, so it tells, with a note of
// what was replaced, of an interrupted replacement.
const insideGuard = AttrReadOnly | AttrNoSymFollow

// Guarded is true for a mount in a container that an interrupted replacement left.
func (m Mount) Guarded() bool { return m.Attr.Has(insideGuard) }

func (p InsidePlan) swap() touch.Swap {
	was := p.Container.Mount
	s := touch.Swap{
		Source: p.Source.Path, SourceMount: ref(p.Source), Sub: p.Sub,
		Attr:     uint64(p.Attr &^ AttrIDMap),
		Before:   unix.MS_PRIVATE,
		IDMapped: was.Attr.Has(AttrIDMap) && !p.Source.Attr.Has(AttrIDMap),
	}
	s.Ended = StateOf(was).Shutdown
	if p.Ours.OldID != 0 {
		s.Ours = ref(p.Ours)
	}
	if p.Stray.OldID != 0 {
		s.Stray = ref(p.Stray)
	}
	s.Guard = uint64(insideGuard)
	switch shares := was.Propagation; {
	case shares.Shared != 0 && p.Peer:
		s.Join = true
	case shares.Master != 0:
		s.Before = unix.MS_SLAVE
		if shares.Shared != 0 {
			s.After = unix.MS_SHARED
		}
	case shares.Shared != 0:
		s.After = unix.MS_SHARED
	case shares.Unbindable:
		s.After = unix.MS_UNBINDABLE
	}
	return s
}
