package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// containerWalks finds the containers, by one walk over all processes at a time:
// when a daemon that served many volumes dies, all of them are asked about at
// once, and a walk costs some 35 us of CPU per process. Who waits for one shares
// the next.
type containerWalks struct {
	mu    sync.Mutex
	began time.Time
	last  workerops.ContainersAnswer
	err   error
}

// all has a worker walk over the processes; no file of theirs is read in here.
func (w *containerWalks) all(ctx context.Context, n *Node) (workerops.ContainersAnswer, error) {
	asked := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began.After(asked) {
		return w.last, w.err
	}
	began := time.Now()
	var last workerops.ContainersAnswer
	var err error
	for tries := 0; tries == 0 || err == nil && last.Cut && tries < 2; tries++ { // a busy node may have cut one short
		err = n.probes.unlessStuck(namespaces, func() (err error) {
			last, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Containers, workerops.ContainersQuery{Budget: n.cfg.ProbeTimeout / 2})
			return err
		})
	}
	if ctx.Err() == nil { // that one caller left is no answer for others
		w.began, w.last, w.err = began, last, err
	}
	return last, err
}

// Running gives the running containers of pods, but for those that only keep a pod's
// namespaces, and one without a name if not all processes could be looked at.
func (n *Node) Running(ctx context.Context, pods []string) (found []Running, err error) {
	walk, err := n.containers.all(ctx, n)
	if err != nil {
		return nil, err
	}
	for _, c := range walk.Containers {
		if slices.Contains(pods, c.PodUID) && !c.Pause {
			found = append(found, Running{c.PodUID, c.ContainerID, c.Started})
		}
	}
	if walk.Cut {
		found = append(found, Running{})
	}
	return found, nil
}

// mountsOf reads mounts of containers. match says what is wanted, beside the mounts
// of the superblocks.
func (n *Node) mountsOf(ctx context.Context, of []workerops.Container, q MountQuery) ([]workerops.MountsOf, error) {
	ask := workerops.MountsQuery{Current: workerops.Number(q.Current), FSType: q.FSType, Source: q.Source, Limit: maxInNamespace}
	for _, dev := range q.Superblocks {
		ask.Superblocks = append(ask.Superblocks, workerops.Number(dev))
	}
	for _, d := range q.Beneath {
		ask.Beneath = append(ask.Beneath, workerops.Directory{Superblock: workerops.Number(d.Dev), Path: d.Path})
	}
	for _, c := range of {
		ask.Of = append(ask.Of, workerops.NamespaceOf{Workload: c.Workload, PID: c.PID, Namespace: c.Namespace})
	}
	var a workerops.MountsAnswer
	err := n.probes.unlessStuck(namespaces, func() (err error) {
		a, err = worker.CallWithin(ctx, n.cfg.ProbeTimeout, n.cfg.Pool, workerops.Mounts, ask)
		return err
	})
	if err == nil && len(a.Of) != len(of) {
		err = errors.New("the worker left out a container")
	}
	return a.Of, err
}

// Holder is a process of a pod that has a superblock mounted in the mount namespace
// of its container: while it runs, kubelet does not unpublish the volume.
type Holder struct {
	PID int
	// pidfd keeps speaking of this process when its number is used again.
	pidfd *os.File
}

// Holder finds a running container of the pod that has the superblock mounted
// outside the host's namespace; nil when there is none. The caller closes it.
func (n *Node) Holder(ctx context.Context, podUID string, dev Dev) (*Holder, error) {
	if podUID == "" || dev.Zero() {
		return nil, nil //nolint:nilnil // no pod, no holder; documented
	}
	walk, err := n.containers.all(ctx, n)
	if err != nil {
		return nil, err
	}
	ofPod := slices.DeleteFunc(slices.Clone(walk.Containers), func(c workerops.Container) bool { return c.PodUID != podUID || c.PID == 0 })
	return n.holder(ctx, dev, ofPod)
}

// HolderAt is Holder for a container whose mount is known; nil where nothing shows
// that it still has it.
func (n *Node) HolderAt(ctx context.Context, m ContainerMount) *Holder {
	if m.PodUID == "" {
		return nil
	}
	h, err := n.holder(ctx, m.Mount.Dev, []workerops.Container{m.container()})
	if err != nil {
		return nil
	}
	return h
}

// holder gives the first of the containers that has the superblock mounted.
func (n *Node) holder(ctx context.Context, dev Dev, all []workerops.Container) (found *Holder, err error) {
	// The pidfds first, so that everything seen is true of the processes that they
	// speak of.
	var held []*Holder
	var of []workerops.Container
	for _, c := range all {
		if h := Hold(c.PID); h != nil {
			held, of = append(held, h), append(of, c)
		}
	}
	if len(of) == 0 {
		return nil, nil //nolint:nilnil // nobody holds it; documented
	}
	mounts, err := n.mountsOf(ctx, of, MountQuery{Superblocks: []Dev{dev}})
	for i, h := range held {
		if found == nil && err == nil && (len(mounts[i].Entries) > 0 || mounts[i].Many) && h.Alive() == nil {
			found = h
			continue
		}
		h.Close()
	}
	return found, err
}

// Hold opens a pidfd of a process; nil when it has ended.
func Hold(pid int) *Holder {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	return &Holder{PID: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
}

// Alive fails once the process has ended.
func (h *Holder) Alive() error {
	poll := []unix.PollFd{{Fd: int32(h.pidfd.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); err != nil || n != 0 {
		return fmt.Errorf("process %d has ended", h.PID)
	}
	return nil
}

// Close frees the pidfd.
func (h *Holder) Close() { _ = h.pidfd.Close() }

// MountQuery says which mounts of containers are wanted: those of the superblocks,
// and those of any superblock that has this type and source, if one is given.
type MountQuery struct {
	Superblocks []Dev
	// Current is one of which only what a step may have left is wanted.
	Current        Dev
	FSType, Source string
	// Beneath are directories: mounts of them, and of what lies in them, are wanted.
	Beneath []Directory
}

// Directory is a directory of a filesystem, by its path from the filesystem's root.
type Directory struct {
	Dev  Dev
	Path string
}

// Shown is true for a mount of the directory, or of something in it.
func (d Directory) Shown(m Mount) bool {
	rest, beneath := strings.CutPrefix(m.Root, d.Path)
	return m.Dev == d.Dev && beneath && (rest == "" || rest[0] == '/')
}

// Wants is true for a mount that is wanted.
func (q MountQuery) Wants(m Mount) bool {
	if slices.ContainsFunc(q.Beneath, func(d Directory) bool { return d.Shown(m) }) {
		return true
	}
	if m.Dev == q.Current {
		return m.maybePlaceholder()
	}
	return slices.Contains(q.Superblocks, m.Dev) || q.FSType != "" && m.FSType == q.FSType && m.Source == q.Source
}
