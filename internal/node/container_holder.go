package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Holder is a container's process that has a superblock mounted in the container's mount namespace:
// while it runs, kubelet does not unpublish the volume.
type Holder struct {
	PID int
	// pidfd refers to this process also when its number is another one's.
	pidfd *os.File
}

// Holder finds a running container of the pod that has the superblock mounted
// outside the host's namespace; nil when there is none. The caller closes it. It fails
// where none was found and not all processes could be read in time: a lost mount would
// pass for one that no pod uses.
func (n *Node) Holder(ctx context.Context, podUID string, dev facts.Dev) (*Holder, error) {
	if podUID == "" || dev.Zero() {
		return nil, nil //nolint:nilnil // no pod, no holder; documented
	}
	walk, err := n.processes(ctx, containerWalk)
	if err != nil {
		return nil, err
	}
	return n.holderAmong(ctx, walk, podUID, dev)
}

func (n *Node) holderAmong(ctx context.Context, walk ops.ProcessesAnswer, podUID string, dev facts.Dev) (*Holder, error) {
	ofPod := slices.DeleteFunc(slices.Clone(walk.Containers), func(c facts.Container) bool { return c.PodUID != podUID || c.PID == 0 })
	found, err := n.holder(ctx, dev, ofPod)
	if found == nil && err == nil && walk.Cut {
		err = errWalkCut
	}
	return found, err
}

var errWalkCut = errors.New("not all processes of the node could be read in time")

// HolderAt is Holder for a container whose mount is known; nil where nothing shows that the container
// still has the mount.
func (n *Node) HolderAt(ctx context.Context, m facts.ContainerMount) *Holder {
	if m.PodUID == "" {
		return nil
	}
	h, err := n.holder(ctx, m.Mount.Dev, []facts.Container{m.Container})
	if err != nil {
		return nil
	}
	return h
}

// holder returns the first of the containers that has the superblock mounted.
func (n *Node) holder(ctx context.Context, dev facts.Dev, all []facts.Container) (found *Holder, err error) {
	// The pidfds first: what is read of a process by its number after that is true of the
	// process that the pidfd refers to, if that still lives in the end.
	var held []*Holder
	var of []facts.Container
	for _, c := range all {
		if h := Hold(c.PID); h != nil {
			held, of = append(held, h), append(of, c)
		}
	}
	if len(of) == 0 {
		return nil, nil //nolint:nilnil // no holder; documented
	}
	mounts, err := n.mountsOf(ctx, of, facts.Filter{Superblocks: []facts.Dev{dev}})
	for i, h := range held {
		if found == nil && err == nil && (len(mounts[i].Mounts) > 0 || mounts[i].Many) && h.Alive() == nil {
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
	// An EINTR, as of a signal of Go's scheduler, does not say that the process has ended.
	if n, err := mount.RetryEINTR(func() (int, error) { return unix.Poll(poll, 0) }); err != nil || n != 0 {
		return fmt.Errorf("process %d has ended", h.PID)
	}
	return nil
}

// Close frees the pidfd.
func (h *Holder) Close() { _ = h.pidfd.Close() }
