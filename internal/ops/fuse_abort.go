package ops

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

const fusectl = "/sys/fs/fuse/connections"

// abortFUSE aborts the FUSE connection of a mount: all that waits for the daemon fails, and what
// was not written yet is lost. To abort twice changes nothing. The descriptor on the mount keeps
// its superblock, and so the number of the connection from being given to another volume's
// between the checks and the write.
func abortFUSE(q facts.AbortPlan) (none struct{}, err error) {
	fd, err := thread{}.openMount(q.Mount.Path, q.Mount.Ref())
	if err != nil {
		return none, err
	}
	defer unix.Close(fd)
	if err := (Dead{Mount: q.Mount}).checkType(thread{}, facts.FUSE); err != nil {
		return none, err
	}
	abort, err := mount.OpenOverNoLink(unix.AT_FDCWD, fmt.Sprintf("%s/%d/abort", fusectl, q.Mount.Dev.FUSEConnection()), unix.O_WRONLY, 0)
	if errors.Is(err, unix.ENOENT) {
		return none, refuse("fusectl has no connection of %s, or is not mounted at %s", q.Mount.Dev, fusectl)
	}
	if err != nil {
		return none, fmt.Errorf("fusectl: %w", err)
	}
	defer unix.Close(abort)
	if err := checkOnlyThisVolume(q); err != nil || q.CheckOnly {
		return none, err
	}
	pause("abort-fuse/checked")
	if err := checkSilent(fd); err != nil {
		return none, err
	}
	if _, err := unix.Write(abort, []byte("1")); err != nil {
		return none, fmt.Errorf("abort the connection: %w", err)
	}
	return none, nil
}

// answerTime is how long a daemon has to answer right before its connection is aborted: on a busy node it,
// or this worker, may not be scheduled for long, and the abort would lose what it is about to write. Aborts
// wait for each other, so it is no longer.
const answerTime = time.Second

// checkSilent refuses a mount whose daemon answers. ENOTCONN and ECONNABORTED come from the kernel
// of a mount without a daemon, and are no answer. A thread that still waits for the daemon can end
// only by the abort: after this check nothing may be refused.
func checkSilent(fd int) error {
	answered := make(chan syscall.Errno, 1)
	go func() { answered <- answers(fd) }()
	select {
	case errno := <-answered:
		if facts.Disconnected(errno) {
			return nil
		}
		return refuse("the daemon answers again")
	case <-time.After(answerTime):
		return nil
	}
}

// checkOnlyThisVolume refuses while the superblock is mounted anywhere that is not known to be
// this volume's, in any mount namespace with the host's owner: the abort ends all of its mounts,
// and another volume's pods would lose what they are about to write.
func checkOnlyThisVolume(q facts.AbortPlan) error {
	namespaces, err := readNamespaces(func(table []facts.Mount) []facts.Mount {
		return slices.DeleteFunc(table, func(m facts.Mount) bool { return m.Dev != q.Mount.Dev })
	})
	if err != nil {
		return err
	}
	defer closeAll(namespaces)
	for _, ns := range namespaces {
		for _, m := range ns.table {
			if !isOfVolume(q, m.Path, ns) {
				return refuse("the connection is also mounted on %.200q in the mount namespace of process %d, which is not known to be this volume", m.Path, ns.pid)
			}
		}
	}
	return nil
}

// isOfVolume reports whether path is a mount point of the volume, or in a container of the volume's
// pods. In other namespaces than the host's, a copy of a mount point may be below any directory: a
// CSI driver's container has the host's root somewhere.
func isOfVolume(q facts.AbortPlan, path string, in namespace) bool {
	if in.home {
		return slices.Contains(q.Paths, path)
	}
	pod := WorkloadIn(in.cgroup).PodUID
	return pod != "" && slices.Contains(q.Pods, pod) ||
		slices.ContainsFunc(q.Paths, func(p string) bool { return strings.HasSuffix(path, p) })
}
